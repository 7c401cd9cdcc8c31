"""Evaluate a checkpoint, embed images with it, and export its network: `plsc eval`, `predict`, `export`."""

import os
from collections.abc import Sequence

from plsc.cli.arguments import make_parser, parse
from plsc.distributed.environment import rank_from_env


def evaluate(argv: Sequence[str]) -> None:
    """Run `plsc eval`."""
    parser = make_parser("eval", "evaluate a checkpoint on DataLoader.Eval's sets", "-c output")
    args = parse(parser, argv)
    from plsc.entry import Entry

    Entry(args.config, args.override).evaluate()


def predict(argv: Sequence[str]) -> int:
    """Run `plsc predict`. Returns 1 if an image cannot be read, otherwise 0."""
    parser = make_parser(
        "predict", "write the embeddings of images, or their classes", "-c output a.png b.png"
    )
    parser.add_argument("images", nargs="+", help="image files, folders of them, or one list of them")
    parser.add_argument("--output", metavar="FOLDER", help="default: predict in Global.output_dir")
    parser.add_argument(
        "--classes",
        action="store_true",
        help="write each image's most similar class in the training data as .csv, instead of embeddings",
    )
    parser.add_argument(
        "--top", type=int, metavar="N", help="with --classes: write the N most similar classes (default: 1)"
    )
    args = parse(parser, argv)
    if args.top is not None and not args.classes:
        parser.error("--top needs --classes")
    import numpy as np

    from plsc.entry import Entry

    images = args.images[0] if len(args.images) == 1 else args.images
    entry = Entry(args.config, args.override)
    output = args.output or os.path.join(entry.config.Global.output_dir, "predict")
    if args.classes:
        _, values, _ = entry.classify(images, output, 1 if args.top is None else args.top)
    else:
        values, _ = entry.predict(images, output)
    # A launcher ends all ranks as soon as one fails, so only the rank that writes the files may fail.
    return int(np.isnan(values).any() and rank_from_env() == 0)


def export(argv: Sequence[str]) -> None:
    """Run `plsc export`."""
    parser = make_parser("export", "write the network for Paddle Inference, ONNX and others", "-c output")
    args = parse(parser, argv)
    from plsc.entry import Entry

    Entry(args.config, args.override).export()
