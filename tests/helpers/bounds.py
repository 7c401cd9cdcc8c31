"""How far float32 may lie from a float64 reference on any processor: k * EPS * sum(|terms|), never a share
that once sufficed.

A rounding is off by at most EPS / 2 times its result, and a sum with n terms by n * EPS / 2 times their
summed sizes, in any order. If n is large, roundings cancel: 4 sqrt(n) * EPS (8 sqrt(n) * EPS / 2) is exceeded
with a probability below 1e-9 (Higham and Mary, "A new approach to probabilistic rounding error analysis",
2019: 2 n exp(-8**2 / 2)).

    product, bound = a @ b, sums(np.matmul, a, b)                      # one layer: sums of products alone
    # any float64 function of arrays, many layers or steps
    want, bound = perturbed(reference, state, images)
    # its embeddings, without and with rounding in each layer
    want, bound = of_network(net, images)
    want, bound = rounded(net, lambda: net(images).numpy())            # whatever a float64 network gives
    assert_within(got, want, bound)                                    # paths=2 where `want` is float32, too

Results and arrays may be in lists and dicts. Numbers that are not float stay as they are.
"""

import copy
from contextlib import contextmanager

import numpy as np

EPS = float(np.finfo(np.float32).eps)
HALF_EPS = 2.0**-7  # of bfloat16: a rounding is off by at most half of it, as by EPS / 2


def growth(terms):
    """Return by how many EPS, relative to the summed sizes, a sum with so many terms may be off."""
    return np.minimum(terms, 4 * np.sqrt(terms))


def sums(compute, *arrays, halves=0):
    """Bound `compute`, whose results are sums of products, with one factor from each array (or from some
    arrays).

    halves: how many of a term's factors, and of what becomes of the sum, are rounded to bfloat16.
    """
    ones = compute(*(np.ones(np.shape(array)) for array in arrays))
    sizes = compute(*(np.abs(array, dtype=np.float64) for array in arrays))
    # Each term is a product, with a rounding for each factor.
    of_halves = halves * HALF_EPS / 2
    return _map(lambda terms, size: (growth(terms + len(arrays)) * EPS + of_halves) * size, ones, sizes)


def roundings(terms):
    """Return how many EPS a rounded sum may differ by, for results that are sums with so many terms.

    A sum with one accumulator rounds each partial sum. If signs vary, this is sqrt(n / 2) / 2 times what
    changing every term by EPS does. If they do not, it is sqrt(n / 3) / 2 times EPS of the sum itself. The
    bound is nearly three times both, for the largest of many results. 8 more allow for what is multiplied,
    added and divided beside the sum.
    """
    return 8 + np.sqrt(terms)


def perturbed(compute, *arrays, terms=256, times=4, eps=EPS):
    """Return what `compute` gives in float64, and twice its largest change when all numbers are off by some
    EPS, at random.

    The reason is that a stable computation gives the exact result for numbers that are off by this much. If
    training steps amplify this, the bound grows with them. It also grows if some numbers cross an
    activation's kink.

    terms: how many terms its longest sum has.
    eps: HALF_EPS if numbers are rounded to bfloat16. Sums are not rounded so, and terms is then 1.
    """
    draw = np.random.default_rng(0)
    off = lambda array: array * _random(draw, array.shape, terms, eps) if _is_float(array) else array
    want = compute(*_map(_wide, list(arrays)))
    runs = [compute(*_map(lambda array: off(_wide(array)), list(arrays))) for _ in range(times)]
    return want, _largest(want, runs, terms, eps)


def rounded(net, compute, terms=256, times=4, eps=EPS):
    """As `perturbed`, for what `compute` gets out of a float64 network: what each layer gives, and its
    gradient, is off."""
    state = {name: value.clone() for name, value in net.state_dict().items()}
    results = []
    for number in range(times + 1):
        with _off(net, number, terms, eps):
            results.append(_map(np.array, compute()))
        net.set_state_dict(state)
    return results[0], _largest(results[0], results[1:], terms, eps)


def of_network(net, images, then=lambda embeddings: embeddings, terms=256):
    """Return the embeddings that the network gives in evaluation, or what `then` makes of them, in float64,
    and their bound."""
    import paddle  # those who have no network need not wait for it

    exact = copy.deepcopy(net)
    exact.eval()
    exact.to(dtype="float64")
    images = paddle.to_tensor(images, "float64")
    return rounded(exact, lambda: then(exact(images).numpy()), terms)


def cosines(size):
    """Bound the cosine between two vectors with so many numbers, each divided by its length.

    A length is off by (size + 1) / 4 + 1 times its EPS, with the division, and the product by size / 2 times
    sum(|terms|) <= 1.
    """
    return (size + 4) * EPS


def assert_within(got, want, bound, paths=1):
    """Compare all numbers, and their shapes. A NaN is never within. `paths`: how many of the two are
    rounded."""

    def compare(got, want, bound):
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        assert got.shape == want.shape, (got.shape, want.shape)
        error, bound = np.abs(got - want), paths * np.asarray(bound, np.float64)
        worst = np.max(error / np.maximum(bound, 1e-300), initial=0)
        assert (error <= bound).all(), (
            f"an error is {worst:.3g} times its bound; the largest is {error.max():.3g}"
        )

    _map(compare, got, want, bound)


def _wide(array):
    array = np.asarray(array)
    return array.astype(np.float64) if _is_float(array) else array


def _is_float(array):
    return np.issubdtype(np.asarray(array).dtype, np.floating)


def _random(draw, shape, terms, eps):
    return 1 + roundings(terms) / 2 * eps * draw.choice([-1, 1], shape)


def _largest(want, runs, terms, eps):
    def bound(want, *runs):
        change = max(np.abs(run - want).max(initial=0) for run in runs)
        return 2 * change + roundings(terms) * eps * np.abs(want)

    return _map(bound, want, *runs)


@contextmanager
def _off(net, seed, terms, eps):
    """Seed 0: as it is."""
    import paddle

    draw = np.random.default_rng(seed)

    def hook(layer, inputs, output):
        factor, of_terms = (
            paddle.to_tensor(_random(draw, output.shape, terms, eps), output.dtype) for _ in range(2)
        )
        # If a sum cancels, its terms are as large as the other results. So an output near 0 may change its
        # sign, and cross a ReLU's kink. A value that is exactly 0 was cut by a ReLU or a dropout, and stays
        # 0. So does a zero embedding, which has no direction.
        size = (output != 0).astype(output.dtype) * output.abs().mean().detach()
        return output * factor + (of_terms - 1) * size

    layers = [layer for layer in net.sublayers(include_self=True) if seed and not layer.sublayers()]
    hooks = [layer.register_forward_post_hook(hook) for layer in layers]
    yield
    for of_layer in hooks:
        of_layer.remove()


def _map(function, *trees):
    first = trees[0]
    if isinstance(first, dict):
        assert all(tree.keys() == first.keys() for tree in trees)
        return {key: _map(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, (list, tuple)):
        assert len({len(tree) for tree in trees}) == 1
        return [_map(function, *parts) for parts in zip(*trees)]
    if first is None:
        assert all(tree is None for tree in trees)
        return None
    return function(*trees)
