"""Offer PLSC's historic `set_*` calls on Entry: edits of the config, or objects that it cannot hold.

Calls of PLSC that have no use here are in GONE: the error of calling one names its replacement.

    Entry().set_train_image_num(5_822_653)  # AttributeError: set_train_image_num: leave it out, the images
    are counted
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plsc.errors import MissingFileError, UserError

if TYPE_CHECKING:
    from typing_extensions import Self

GONE = {
    "set_train_image_num": "leave it out, the images are counted",
    "set_image_shape": "the shape is the data set's, set DataLoader.Train.dataset.size",
    "set_input_info": "leave it out, a backbone has one input, the images",
    "set_calc_acc": "leave it out, the accuracy of training is always reported",
    "set_mixed_precision": "set Global.amp to {dtype: float16}, whose scale adapts itself, or {dtype: bfloat16}",
    "set_hdfs_info": "copy checkpoints to and from HDFS outside of plsc",
    "set_use_quant": "plsc does not quantise",
    "convert_for_prediction": "call export()",
}


class Setters:
    """A mixin of Entry. Calls return the Entry, so they can be chained; a wrong value raises UserError."""

    if not TYPE_CHECKING:  # a type checker knows the calls, and should report any other name

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"{name}: {GONE[name]}"
                if name in GONE
                else f"'{type(self).__name__}' object has no attribute '{name}'"
            )

    def _set(self, key: str, value: Any, caller: str) -> Self:
        return self._set_all({key: value}, caller)

    def _set_all(self, changes: dict[str, Any], caller: str) -> Self:
        self.config = self.config.edit(changes, caller)
        return self

    def set_train_batch_size(self, samples: int) -> Self:
        """Set the samples per rank and step."""
        return self._set("DataLoader.Train.batch_size", samples, "set_train_batch_size")

    def set_test_batch_size(self, images: int) -> Self:
        """Set the images per rank in one forward pass of verification and prediction."""
        return self._set("DataLoader.Eval.batch_size", images, "set_test_batch_size")

    def set_model_save_dir(self, folder: str) -> Self:
        """Set the output folder of the run."""
        return self._set("Global.output_dir", folder, "set_model_save_dir")

    def set_checkpoint_dir(self, folder: str) -> Self:
        """Set the checkpoint that test, predict, export and a resumed training read.

        A new training starts from another run's weights with Global.init_from.
        """
        return self._set("Global.checkpoint", folder, "set_checkpoint_dir")

    def set_class_num(self, classes: int) -> Self:
        """Refuse to train on data with another number of classes."""
        return self._set("DataLoader.Train.num_classes", classes, "set_class_num")

    def set_emb_size(self, size: int) -> Self:
        """Set the length of the embedding."""
        return self._set("Model.embedding_size", size, "set_emb_size")

    def set_model_name(self, name: str) -> Self:
        """Choose a built-in or registered backbone, or package.module:Class."""
        return self._set("Model.name", name, "set_model_name")

    def set_train_epochs(self, epochs: int) -> Self:
        """Set the number of passes over the training set."""
        return self._set("Global.epochs", epochs, "set_train_epochs")

    def set_train_steps(self, steps: int) -> Self:
        """Set the number of optimizer steps instead of epochs."""
        return self._set("Global.max_steps", steps, "set_train_steps")

    def set_warmup_epochs(self, epochs: float) -> Self:
        """Set the number of epochs in which the learning rate rises."""
        return self._set("LRScheduler.warmup_epochs", epochs, "set_warmup_epochs")

    def set_loss_type(self, name: str, margin: float | None = None, scale: float | None = None) -> Self:
        """Choose softmax or a margin such as arcface (dist_ shards it), or package.module:Class."""
        given = {"Head.name": name, "Head.margin": margin, "Head.scale": scale}
        return self._set_all(
            {key: value for key, value in given.items() if value is not None}, "set_loss_type"
        )

    def set_model_parallel(self, spread: bool) -> Self:
        """Choose whether the classes are sharded over the ranks."""
        _check_bool(spread, "set_model_parallel")
        head = self.config.Head
        if head.kind == head.name and head.sharded:
            if spread:
                return self
            raise UserError(
                f"set_model_parallel: {head.name} is always spread over the ranks; register the class "
                "(plsc.utils.registry.MARGINS), and give its short name"
            )
        return self._set("Head.name", f"dist_{head.kind}" if spread else head.kind, "set_model_parallel")

    def set_sample_ratio(self, ratio: float) -> Self:
        """Set the share of the class centres that take part in a step (Partial FC), with a dist_ loss."""
        return self._set("Head.sample_rate", ratio, "set_sample_ratio")

    def set_with_test(self, verify: bool) -> Self:
        """Choose whether to verify, while training and at its end; True needs a pair set in the config."""
        _check_bool(verify, "set_with_test")
        if not verify:
            changes = {"DataLoader.Eval.dataset": None, "DataLoader.Eval.more": {}}
            return self._set_all(changes, "set_with_test")
        if self.config.DataLoader.Eval.dataset is None:
            raise UserError(
                "set_with_test: DataLoader.Eval.dataset is null; name a pair set there to verify on"
            )
        return self

    def set_dataset_dir(self, folder: str | os.PathLike) -> Self:
        """Train on the images that label.txt in `folder` lists, a path and a label a line.

        Images are mirrored at random, as PLSC did.
        """
        folder = os.fspath(folder)
        label = os.path.join(folder, "label.txt")
        data = {"name": "ImageList", "list": label, "root": folder, "flip": True}
        return self._set("DataLoader.Train.dataset", data, "set_dataset_dir")

    def set_val_targets(self, targets: str) -> Self:
        """Verify on packs such as "lfw,cfp_fp": lfw.bin and cfp_fp.bin in the folder of set_dataset_dir.

        The first is the main set.
        """
        sets = self.config.DataLoader.Train.sets
        folder = next((one.keywords["root"] for one in sets if one.keywords.get("root")), None)
        if not folder:
            raise UserError(
                "set_val_targets: looks in the folder of the training images, which is not known; call set_dataset_dir first"
            )
        names = [name.strip() for name in targets.split(",") if name.strip()]
        packs = {name: {"name": "BinPairs", "path": os.path.join(folder, f"{name}.bin")} for name in names}
        if not packs:
            raise UserError(f"set_val_targets: must name packs, separated by commas (got {targets!r})")
        for pack in packs.values():
            if not os.path.isfile(pack["path"]):
                raise MissingFileError(f"set_val_targets: there is no {pack['path']}")
        main, *others = packs
        changes = {
            "DataLoader.Eval.dataset": {**packs[main], "title": main},
            "DataLoader.Eval.more": {name: packs[name] for name in others},
        }
        return self._set_all(changes, "set_val_targets")

    def set_test_period(self, steps: int) -> Self:
        """Set the steps between two verifications."""
        return self._set("Global.eval_every_steps", steps, "set_test_period")

    def set_log_period(self, steps: int) -> Self:
        """Set the steps between two log lines."""
        return self._set("Global.log_every", steps, "set_log_period")

    def set_lr_decay_factor(self, factor: float) -> Self:
        """Set the factor on the learning rate at each boundary; call set_step_boundaries first."""
        if self.config.LRScheduler.name != "step":
            raise UserError(
                f"set_lr_decay_factor: the schedule is {self.config.LRScheduler.name}, which has no steps to decay at; call "
                "set_step_boundaries first"
            )
        return self._set("LRScheduler.gamma", factor, "set_lr_decay_factor")

    def set_step_boundaries(self, steps: list[int]) -> Self:
        """Set the steps at which the learning rate drops."""
        changes = {"LRScheduler.name": "step", "LRScheduler.boundaries": list(steps)}
        return self._set_all(changes, "set_step_boundaries")

    def set_distfc_attr(self, init_std: float) -> Self:
        """Set the standard deviation of the initial class centres."""
        return self._set("Head.init_std", init_std, "set_distfc_attr")

    def set_max_last_checkpoint_num(self, checkpoints: int) -> Self:
        """Set the number of newest checkpoints to keep besides the best."""
        return self._set("Checkpoint.keep", checkpoints, "set_max_last_checkpoint_num")

    def set_model(self, backbone: Any) -> Self:
        """Train your own paddle.nn.Layer, images [B, C, H, W] -> embeddings [B, D], instead of Model.name's.

        D must be Model.embedding_size, see set_emb_size.
        """
        if isinstance(backbone, type) or not callable(getattr(backbone, "named_parameters", None)):
            raise UserError(
                f"set_model: must be given a paddle.nn.Layer, made, not its class or its name (got {backbone!r}); set_model_name "
                "takes a name, or package.module:Class"
            )
        self._model = backbone
        return self

    def set_optimizer(self, make: str | Callable) -> Self:
        """Choose Momentum, AdamW or LARS, or a function backbone -> Paddle optimizer instead of Optimizer's
        for the backbone.

        With a function, class centres keep theirs. The learning rate of both is LRScheduler's; the one given
        to the optimizer is not used.
        """
        if isinstance(make, str):
            self._make_optimizer = None
            return self._set("Optimizer.name", make, "set_optimizer")
        if isinstance(make, type) or not callable(make):
            raise UserError(
                f"set_optimizer: must be given a name, or a function that makes the optimizer of a backbone (got {type(make).__name__} "
                "object or class), such as lambda net: paddle.optimizer.Adam(parameters=net.parameters())"
            )
        self._make_optimizer = make
        return self


def _check_bool(value: Any, caller: str) -> None:
    if not isinstance(value, bool):
        raise UserError(f"{caller}: must be True or False (got {value!r})")
