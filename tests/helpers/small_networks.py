"""The built-in families in sizes that a test computes in no time."""

from plsc.backbones.face_vit import FaceViT
from plsc.backbones.iresnet import IResNet
from plsc.backbones.resnet import ResNet


class SmallFaceViT(FaceViT):
    width, depth = 16, 2


class SmallIResNet(IResNet):
    blocks = (1, 2, 1, 1)


class SmallResNet50(ResNet):
    blocks = (1, 2, 1, 1)
