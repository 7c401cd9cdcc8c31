"""Evaluate a checkpoint, embed images with it, and export its network: `plsc eval`, `predict`, `export`."""

import os
from collections.abc import Sequence

from plsc.cli.arguments import make_parser, parse


def evaluate(argv: Sequence[str]) -> None:
    """Run `plsc eval`."""
    parser = make_parser("eval", "evaluate a checkpoint on DataLoader.Eval's sets", "-c first")
    args = parse(parser, argv)
    from plsc.entry import Entry

    Entry(args.config, args.override).evaluate()


def predict(argv: Sequence[str]) -> None:
    """Run `plsc predict`."""
    parser = make_parser(
        "predict", "write the embeddings of images, or their classes", "-c first a.png b.png"
    )
    parser.add_argument("images", nargs="+", help="image files, folders of them, or one .txt list of them")
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
    from plsc.entry import Entry

    images = args.images
    if len(images) == 1 and images[0].endswith(".txt"):
        images = images[0]
    entry = Entry(args.config, args.override)
    output = args.output or os.path.join(entry.config.Global.output_dir, "predict")
    if args.classes:
        entry.classify(images, output, 1 if args.top is None else args.top)
    else:
        entry.predict(images, output)


def export(argv: Sequence[str]) -> None:
    """Run `plsc export`."""
    parser = make_parser("export", "write the network for Paddle Inference, ONNX and others", "-c first")
    args = parse(parser, argv)
    from plsc.entry import Entry

    Entry(args.config, args.override).export()
