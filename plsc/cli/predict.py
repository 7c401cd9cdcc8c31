"""Compute the embeddings of images: `plsc predict`."""

from __future__ import annotations

from collections.abc import Sequence

from plsc.cli.arguments import make_parser, parse


def main(argv: Sequence[str]) -> None:
    """Run `plsc predict`."""
    parser = make_parser(
        "predict", "write the embeddings of images, as .npy", "-c first/config.yaml a.png b.png"
    )
    parser.add_argument("images", nargs="+", help="image files, or one .txt list of them")
    parser.add_argument("--output", metavar="FOLDER", help="default: predict in Global.output_dir")
    args = parse(parser, argv)
    from plsc.entry import Entry

    images = args.images
    if len(images) == 1 and images[0].endswith(".txt"):
        images = images[0]
    Entry(args.config, args.override).predict(images, args.output)
