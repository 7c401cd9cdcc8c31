"""Write README.txt: what a graph takes and gives, what its cosines mean, how to check that, and ten lines
that use it."""

from __future__ import annotations

from plsc.apps.export.card import RESIZE
from plsc.apps.export.kit import HOW_TO_READ
from plsc.apps.export.paddlex import NAME
from plsc.data.preprocessing import DARKEST
from plsc.errors import shown

_NOT_NORMALISED = [
    "Do not subtract a mean, do not divide by 255 or 127.5: the graph does what has to be done.",
    f"An image without a pixel above {DARKEST:g} was normalised before, or is black: its embedding is all zeros.",
]
_ALIGNED = {
    True: "yes: faces whose landmarks lie at ArcFace's places, as plsc align writes them",
    False: "no: the network was trained on pictures that are not",
}
_THEIRS = {
    "insightface": "the picture as cv2.imread gives it; insightface resizes it, linearly, and makes RGB of it.",
    "paddlex": "a file, or the picture as cv2.imread gives it; PaddleX resizes it, linearly, and makes RGB of it.",
}


def readme_text(card: dict) -> str:
    """Write the text of README.txt for the folder whose preprocessing.json is `card`."""
    noun = "image" if "channels" in card["preprocessing"] else "sample"
    kind = next((kind for kind in ("insightface", "paddlex", "onnx", "paddle") if _is_here(card, kind)), None)
    lines = [
        *_input(card, noun, kind),
        f"embedding  float32 [batch, {card['embedding_size']}] of length 1: the dot product of two is their cosine.",
        *_threshold(card, noun),
        *_int8(card),
        *_folders(card),
        "",
        *(_NOT_NORMALISED if noun == "image" else []),
        *_kit(card, noun),
    ]
    if kind:
        lines += ["", *(f"    {line}" for line in _code(card, noun, kind))]
    return "\n".join(lines) + "\n"


def _is_here(card: dict, kind: str) -> bool:
    return kind in card["files"] and "/" not in card["files"][kind]["model"]


def _input(card: dict, noun: str, kind: str | None) -> list[str]:
    if kind in _THEIRS:
        return [f"{noun:10} {_THEIRS[kind]}", f"size       height and width {card['preprocessing']['size']}"]
    lines = [f"{noun:10} float32 [{', '.join(map(str, card['input']['shape']))}]: {card['input']['values']}."]
    if noun == "image":
        left = card["preprocessing"]
        lines += [
            f"channels   {left['channels']}",
            f"size       height and width {left['size']}; resized {RESIZE}",
        ]
        if "aligned" in left:
            lines.append(f"aligned    {_ALIGNED[left['aligned']]}")
    return lines


def _threshold(card: dict, noun: str) -> list[str]:
    """Say above which cosine two samples are of one class, and of which embeddings and pairs that is."""
    if card["threshold"] is None:
        return ["threshold  not known; plsc eval --set-threshold finds it, and plsc export writes it here"]
    where = "the main evaluation set" if card["threshold_set"] is None else shown(card["threshold_set"])
    line = f"threshold  {card['threshold']:.4f}: two {noun}s with a higher cosine are of the same class. "
    line += f"It is the most accurate one on {where}; other pictures may need another."
    if card["flip"]:
        line += f" It is of the {card['threshold_of']}."
    lines = [line]
    if card.get("calibration"):
        lines.append(
            "P(same)    follows from the cosine by `calibration` in preprocessing.json, as below, for pairs such as those."
        )
    return lines


def _int8(card: dict) -> list[str]:
    """Say what 8 bits cost."""
    if "int8" not in card:
        return []
    measured = card["int8"]
    shares = f"{100 * measured['accuracy']:.2f} %, in float32 {100 * measured['accuracy_float32']:.2f} %"
    return [f"8 bits     accuracy {shares}, on {shown(measured['set'])}."]


def _kit(card: dict, noun: str) -> list[str]:
    """Say whose pictures the kit has, and how it is used."""
    kit = card["kit"]
    if kit is None:
        return []
    folder, what = kit["folder"], f"[{kit['samples']}, {card['embedding_size']}]"
    both = f" of {card['threshold_of']}" if card["flip"] else ""
    pictures = (
        f"{folder}/pictures"
        if card["preprocessing"].get("channels") in HOW_TO_READ
        else f"{folder}/samples.npy"
    )
    whose = f"Its {kit['samples']} {noun}s are your own data, of {shown(kit['of'])}: look at them before you hand the export on;"
    return [
        "",
        f"The kit says whether a converted network is right, or which fault it has. {whose} Export.kit=0 leaves the kit out.",
        f"1. Embed {pictures} in their order, on the board or by the other runtime, and save float32 {what}{both}: mine.npy.",
        f"2. python {folder}/check.py mine.npy (needs NumPy), or in {folder}: cc -std=c99 check.c -o check -lm && ./check mine.npy",
        "3. It says `pass`, or the likely fault. A file that is no .npy has the numbers alone.",
    ]


def _folders(card: dict) -> list[str]:
    kinds = [kind for kind, names in card["files"].items() if "/" in names["model"]]
    return [f"{kind}/{' ' * (10 - len(kind))}has a README.txt of its own" for kind in kinds]


def _code(card: dict, noun: str, kind: str) -> list[str]:
    """Write the lines that embed the kit's samples, or two files, and compare the first two."""
    reading, mirrored = HOW_TO_READ.get(card["preprocessing"].get("channels")), f"{noun}[..., ::-1]"
    modules = "glob, json, cv2, numpy as np" if reading else "json, numpy as np"
    if kind in _THEIRS:
        reading, mirrored = "cv2.imread(name)", f"{noun}[:, ::-1]"
    if kind == "insightface":
        start = [f"import {modules}, insightface"]
        start += ["model = insightface.model_zoo.get_model('model.onnx')"]
        embed = [f"def embed({noun}):", f"    return model.get_feat({noun})[0]"]
    elif kind == "paddlex":
        start = [f"import {modules}, paddlex"]
        start += [f"model = paddlex.create_model('{NAME}', model_dir='.')"]
        embed = [f"def embed({noun}):", f"    return np.ravel(next(iter(model.predict({noun})))['feature'])"]
    elif kind == "onnx":
        start = [f"import {modules}, onnxruntime"]
        start += ["session = onnxruntime.InferenceSession('model.onnx')"]
        embed = [f"def embed({noun}):"]
        embed += [f"    return session.run(None, {{'{noun}': {noun}[None].astype(np.float32)}})[0][0]"]
    else:
        names = card["files"]["paddle"]
        start = [f"import {modules}", "from paddle import inference"]
        start += [f"config = inference.Config('{names['model']}', '{names['params']}')"]
        start += ["predictor = inference.create_predictor(config)"]
        copied = f"np.ascontiguousarray({noun}[None], np.float32)"
        embed = [f"def embed({noun}):"]
        embed += [f"    predictor.get_input_handle('{noun}').copy_from_cpu({copied})", "    predictor.run()"]
        embed += [f"    return predictor.get_output_handle('{names['output']}').copy_to_cpu()[0]"]
    lines, kit = [*start, *embed], card["kit"]
    if reading:
        lines += ["def read(name):", f"    return {reading}"]
        names = f"sorted(glob.glob('{kit['folder']}/pictures/*.png'))" if kit else "['a.png', 'b.png']"
        lines += [f"{noun}s = [read(name) for name in {names}]"]
    else:
        lines += [f"{noun}s = np.load('{kit['folder'] + '/' if kit else ''}samples.npy')"]
    embed = "embed"
    if card["flip"]:
        embed = "both"
        lines += [f"def both({noun}):", f"    total = embed({noun}) + embed({mirrored})"]
        lines += ["    return total / np.linalg.norm(total)"]
    lines += [f"embeddings = np.stack([{embed}({noun}) for {noun} in {noun}s])"]
    if kit:
        lines += [f"np.save('{kit['folder']}/mine.npy', embeddings)  # for check.py"]
    if card["threshold"] is not None:
        lines += _comparison(card)
    return lines


def _comparison(card: dict) -> list[str]:
    """Write the lines that compare the first two embeddings by the threshold."""
    lines = ["card = json.load(open('preprocessing.json'))"]
    lines += ["cosine = embeddings[0] @ embeddings[1]"]
    lines += ["print(cosine, 'same class' if cosine > card['threshold'] else 'different')"]
    if card.get("calibration"):
        lines += ["known = card['calibration']"]
        lines += [
            "print('P(same)', 1 / (1 + np.exp(-np.interp(cosine, known['cosine'], known['log_odds']))))"
        ]
    return lines
