"""A network whose ranks are lost after ten seconds without a beat, so that tests wait less."""

from plsc.backbones.small_resnet import SmallResNet
from plsc.distributed import peers

peers.SILENCE = 10.0


class ShortSilence(SmallResNet):
    """The network of tiny.yaml."""
