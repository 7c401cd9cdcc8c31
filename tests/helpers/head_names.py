"""The names of the built-in heads, as messages list them."""

KINDS = ("arcface", "softmax", "cosface", "sphereface", "combined", "adaface", "magface", "curricularface")
HEADS = ", ".join(f"{kind}, dist_{kind}" for kind in KINDS)
