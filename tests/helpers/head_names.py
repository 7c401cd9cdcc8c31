"""The built-in heads' names, in the order in which messages list them."""

KINDS = ("arcface", "softmax", "cosface", "sphereface", "combined", "adaface", "magface", "curricularface")
HEADS = [name for kind in KINDS for name in (kind, f"dist_{kind}")]
