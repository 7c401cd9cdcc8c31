"""The names of the built-in heads, in the order of messages."""

KINDS = ("arcface", "softmax", "cosface", "sphereface", "combined", "adaface", "magface", "curricularface")
HEADS = [name for kind in KINDS for name in (kind, f"dist_{kind}")]
