"""What the tests of the head share."""

from __future__ import annotations

import paddle


def run(head, x, label):
    """-> HeadOutput, gradient by x, gradient by the centres."""
    emb = paddle.to_tensor(x, stop_gradient=False)
    out = head(emb, paddle.to_tensor(label))
    out.loss.backward()
    return out, emb.grad.numpy(), head.bank.gradients()["centres"].numpy()
