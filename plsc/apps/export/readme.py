"""Write README.txt: what a graph takes and gives, what its cosines mean, and ten lines that use it."""

from __future__ import annotations

from plsc.apps.export.card import RESIZE
from plsc.apps.export.paddlex import NAME
from plsc.apps.export.self_check import HOW_TO_READ
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
    self_check = card["self_check"]
    noun = "image" if "image" in self_check else "sample"
    kind = next((kind for kind in ("insightface", "paddlex", "onnx", "paddle") if _is_here(card, kind)), None)
    lines = [
        *_input(card, noun, kind),
        f"embedding  float32 [batch, {card['embedding_size']}] of length 1: the dot product of two is their cosine.",
        *_threshold(card, noun),
        *_int8(card),
        *_folders(card),
        "",
        *(_NOT_NORMALISED if noun == "image" else []),
        "",
        f"Check your code: {self_check[noun]} must get the embedding in check.json, with a cosine above",
        f"{self_check['least_cosine']}. Below that, the {noun} is not what the graph takes (normalisation, order of the axes"
        + (", of the channels); 0 means" if noun == "image" else ")."),
        *(["that it was normalised."] if noun == "image" else []),
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
    """Say what 8 bits cost: the model card beside is that of the network in float32."""
    if "int8" not in card:
        return []
    measured = card["int8"]
    shares = f"{100 * measured['accuracy']:.2f} %, in float32 {100 * measured['accuracy_float32']:.2f} %"
    return [
        f"8 bits     accuracy {shares}, on {shown(measured['set'])}.",
        "           card.md and card.json, where they are here, have the numbers of the network in float32.",
    ]


def _folders(card: dict) -> list[str]:
    kinds = [kind for kind, names in card["files"].items() if "/" in names["model"]]
    return [f"{kind}/{' ' * (10 - len(kind))}has a README.txt of its own" for kind in kinds]


def _code(card: dict, noun: str, kind: str) -> list[str]:
    """Write the lines that embed the sample, check that, and compare it with another one."""
    reading = HOW_TO_READ.get(card["preprocessing"].get("channels"), "np.load('check.npy')")
    mirrored, turned = f"{noun}[..., ::-1]", f"{noun}[:, ::-1]"
    modules = "json, cv2, numpy as np" if "cv2" in reading else "json, numpy as np"
    if kind == "insightface":
        reading, mirrored, turned = "cv2.imread('check.png')", f"{noun}[:, ::-1]", f"{noun}[::-1]"
        start = ["import json, cv2, numpy as np, insightface"]
        start += ["model = insightface.model_zoo.get_model('model.onnx')"]
        embed = [f"def embed({noun}):", f"    return model.get_feat({noun})[0]"]
    elif kind == "paddlex":
        reading, mirrored, turned = "cv2.imread('check.png')", f"{noun}[:, ::-1]", f"{noun}[::-1]"
        start = ["import json, cv2, numpy as np, paddlex"]
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
    expected = f"json.load(open('check.json'))['embedding'] > {card['self_check']['least_cosine']}"
    lines = [*start, *embed, f"{noun} = {reading}", f"assert embed({noun}) @ {expected}"]
    if card["threshold"] is not None:
        lines += _comparison(card, noun, mirrored, turned)
    return lines


def _comparison(card: dict, noun: str, mirrored: str, turned: str) -> list[str]:
    """Write the lines that compare the sample with another one, here an image upside down, by the threshold."""
    lines = ["card = json.load(open('preprocessing.json'))"]
    embed, other = "embed", turned if noun == "image" else noun
    if card["flip"]:
        embed = "both"
        lines += [f"def both({noun}):", f"    total = embed({noun}) + embed({mirrored})"]
        lines += ["    return total / np.linalg.norm(total)"]
    lines += [f"cosine = {embed}({noun}) @ {embed}({other})  # give it two of your own"]
    lines += ["print(cosine, 'same class' if cosine > card['threshold'] else 'different')"]
    if card.get("calibration"):
        lines += ["known = card['calibration']"]
        lines += [
            "print('P(same)', 1 / (1 + np.exp(-np.interp(cosine, known['cosine'], known['log_odds']))))"
        ]
    return lines
