"""Write README.txt: what the graphs take and give, and how to check one's own code."""

from __future__ import annotations

from plsc.backbones.export.card import DARKEST, RESIZE
from plsc.backbones.export.self_check import HOW_TO_READ

_NOT_NORMALISED = [
    "Do not subtract a mean, do not divide by 255 or 127.5: the graph does what has to be done.",
    f"An image without a pixel above {DARKEST:g} was normalised before, or is black: its embedding is all zeros.",
    "",
]


def _about_images(left: dict) -> list[str]:
    return [
        f"channels   {left['channels']}",
        f"size       height and width {left['size']}; resized {RESIZE}",
    ]


def readme_text(card: dict, self_check: dict) -> str:
    """Write the text of README.txt: input and output of the graph, and how to check one's own code."""
    noun = "image" if "image" in self_check else "sample"
    reading = HOW_TO_READ.get(card["preprocessing"].get("channels"), "np.load('check.npy')")
    check = f"Check your code: {self_check[noun]} must get the embedding in check.json, with a cosine above"
    lines = [
        f"{noun:10} float32 [{', '.join(map(str, card['input']['shape']))}]: {card['input']['values']}.",
        *(_about_images(card["preprocessing"]) if noun == "image" else []),
        f"embedding  float32 [batch, {card['embedding_size']}] of length 1: the dot product of two is their cosine.",
        "",
        *(_NOT_NORMALISED if noun == "image" else []),
        check,
        f"{self_check['least_cosine']}. Below that, the {noun} is not what the graph takes (normalisation, order of the axes"
        + (", of the channels); 0 means" if noun == "image" else ")."),
        *(["that it was normalised."] if noun == "image" else []),
    ]
    if "onnx" in card["files"]:
        lines += [
            "",
            "    import json, cv2, numpy as np, onnxruntime",
            f"    {noun} = {reading}",
            "    session = onnxruntime.InferenceSession('model.onnx')",
            f"    embedding = session.run(None, {{'{noun}': {noun}[None].astype(np.float32)}})[0][0]",
            f"    assert embedding @ json.load(open('check.json'))['embedding'] > {self_check['least_cosine']}",
        ]
    elif "paddle" in card["files"]:
        names = card["files"]["paddle"]
        lines += [
            "",
            "    import json, cv2, numpy as np",
            "    from paddle import inference",
            f"    {noun} = {reading}",
            f"    config = inference.Config('{names['model']}', '{names['params']}')",
            "    predictor = inference.create_predictor(config)",
            f"    predictor.get_input_handle('{noun}').copy_from_cpu(np.ascontiguousarray({noun}[None], np.float32))",
            "    predictor.run()",
            f"    embedding = predictor.get_output_handle('{names['output']}').copy_to_cpu()[0]",
            f"    assert embedding @ json.load(open('check.json'))['embedding'] > {self_check['least_cosine']}",
        ]
    return "\n".join(lines) + "\n"
