"""Name the published networks that find faces and tell them apart. OpenCV runs both."""

from plsc.utils.published import Published

YUNET = Published(
    "YuNet, which finds faces",
    "https://media.githubusercontent.com/media/opencv/opencv_zoo/82b38c8f98e7b52aa171400f3e4c722352d0669f"
    "/models/face_detection_yunet/face_detection_yunet_2023mar.onnx",
    "8f2383e4dd3cfbb4553ea8718107fc0423210dc964f9f4280604804ed2552fa4",
    232_589,
    "MIT",
)
SFACE = Published(
    "SFace, which tells faces apart",
    "https://huggingface.co/opencv/face_recognition_sface/resolve/3d7082438a6e4551e840c9b2bb60b71e8da4b524"
    "/face_recognition_sface_2021dec.onnx",
    "0ba9fbfa01b5270c96627c4ef784da859931e02f04419c829e83484087c34e79",
    38_696_353,
    "Apache-2.0",
)
