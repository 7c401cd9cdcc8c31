"""Evaluate a checkpoint, embed images by it, and export its network: `plsc eval`, `predict`, `export`."""

from collections.abc import Sequence

from plsc.cli.arguments import make_parser, parse


def evaluate(argv: Sequence[str]) -> None:
    """Run `plsc eval`."""
    what = "evaluate a checkpoint on the sets of DataLoader.Eval"
    args = parse(make_parser("eval", what, "-c first/config.yaml"), argv)
    from plsc.entry import Entry

    Entry(args.config, args.override).evaluate()


def predict(argv: Sequence[str]) -> None:
    """Run `plsc predict`."""
    what = "write the embeddings of images, as .npy"
    parser = make_parser("predict", what, "-c first/config.yaml a.png b.png")
    parser.add_argument("images", nargs="+", help="image files, or one .txt list of them")
    parser.add_argument("--output", metavar="FOLDER", help="default: predict in Global.output_dir")
    args = parse(parser, argv)
    from plsc.entry import Entry

    images = args.images
    if len(images) == 1 and images[0].endswith(".txt"):
        images = images[0]
    Entry(args.config, args.override).predict(images, args.output)


def export(argv: Sequence[str]) -> None:
    """Run `plsc export`."""
    what = "write the network for Paddle Inference, ONNX and others"
    args = parse(make_parser("export", what, "-c first/config.yaml"), argv)
    from plsc.entry import Entry

    Entry(args.config, args.override).export()
