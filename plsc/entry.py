"""Train, evaluate, predict and export by a config.

    from plsc import Entry
    Entry("configs/default.yaml", ["Global.epochs=1"]).train()

An Entry holds a Config, and each verb is a method that calls the modules below. The verbs import Paddle, not this
module, so that a wrong config is refused at once. The historic `set_*` calls are edits of the config.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plsc.apps.migrate.setters import Setters
from plsc.config import Config, load
from plsc.config.advice import advice
from plsc.data.preprocessing import Preprocessing
from plsc.distributed import environment, guard
from plsc.errors import UserError, names_text, shown, writing
from plsc.heads.config import format_rows
from plsc.training.finish import finish
from plsc.training.stand_in import check_data
from plsc.training.start import find_checkpoint, open_checkpoint, start
from plsc.utils.atomic_write import atomic_write, replace_file
from plsc.utils.loggers import check_packages
from plsc.utils.logging import get_logger, setup, warn
from plsc.utils.metrics import Metrics
from plsc.utils.sharding import split
from plsc.utils.text import duration
from plsc.utils.vectors import unit_rows

if TYPE_CHECKING:
    from plsc.training.check_card import Outcome

# What a training run leaves in Global.output_dir.
RUN_FILES = (
    *("config.yaml", "metrics.jsonl", "train.log", "checkpoints", "identities.json"),
    *("visualdl", "tensorboard", "wandb", "mlflow", "logged.json"),
    *("report.html", "results.json", "curves.png", "roc.png", "det.png", "cmc.png", "histogram.png"),
    *("calibration.png", "worst_pairs.png", "confusion.png", "steps.png"),
    *("card.md", "card.json", "diverged", "export", "test", "predict"),
)


class Entry(Setters):
    """Train, evaluate, predict and export by one config.

        run = Entry("faces.yaml", {"Global.epochs": 2})
        run.train()
        embeddings, names = Entry("output/faces").predict(["ann.jpg", "bob.jpg"])

    Args:
        config: a YAML file, a folder (of a run, or with a default.yaml), a mapping, a Config, or None for the defaults.
        overrides: "Section.key" -> value, or "Section.key=value" each, as `-o` takes them; they win over `config`.

    Raises UserError with all mistakes in the config, one line each.
    """

    def __init__(
        self,
        config: str | os.PathLike | Mapping[str, Any] | Config | None = None,
        overrides: Iterable[str] | Mapping[str, Any] = (),
    ):
        environment.before_paddle()  # the config may name classes, whose modules import Paddle
        self.config = load(config, overrides)
        self._model: Any = None
        self._make_optimizer: Callable | None = None

    def __repr__(self) -> str:
        sets = ", ".join(section.name for section in self.config.DataLoader.Train.sets)
        return f"<Entry: {self.config.Model.name} and {self.config.Head.name} on {sets}, in {shown(self.output_dir)}>"

    @property
    def output_dir(self) -> Path:
        return Path(self.config.Global.output_dir)

    # -- verbs --------------------------------------------------------------------------------------------------------------

    def train(self) -> dict[str, Any]:
        """Train to the end, evaluate, write the report. Every rank calls it in a launch.

        SIGTERM or SIGINT stops it after a step, with a checkpoint of that step.

        Returns {"accuracy", ..., "seconds", "output_dir"} of the last evaluation (accuracy None without a set for it);
        {"stopped", "step", ...} after a signal. UserError if another run is at work in output_dir.
        """
        self.config.check_ranks(environment.world_size_from_env())
        self.config.check_data()  # before anything is written
        self._refuse_unread_checkpoint()
        with guard.Guard(self.output_dir, self.config.Global.hang_seconds) as guarded:
            return self._train(guarded)

    def _train(self, guarded: guard.Guard) -> dict[str, Any]:
        notes = start(self.config)
        from plsc import distributed
        from plsc.heads.self_check import refuse_a_wrong_head
        from plsc.training import card

        for note in notes:
            get_logger().info(note)
        distributed.run_on_rank_0(partial(check_packages, self.config.Global.loggers))
        refuse_a_wrong_head(self.config.Global.tf32)
        guarded.listen()
        trainer, metrics = self._begin(guarded)
        if guarded.stopped:
            return self._stopped(guarded, metrics)
        evaluator = trainer.evaluator
        if evaluator.sets and evaluator.row is None:
            evaluator.evaluate()  # resumed after the last step, whose row the metrics have already
        result = {**(evaluator.row or {"accuracy": None})}
        result.update(seconds=trainer.seconds, output_dir=str(self.output_dir))
        if metrics:
            metrics.close()
            took = f"took {duration(trainer.seconds)}"
            best = trainer.best.model_dump() if trainer.best else None
            facts = {"step": trainer.step, "best": best}
            write_card = partial(
                card.write_of_training, self.config, trainer.step, trainer.dataset, evaluator.sets
            )
            finish(self.config, evaluator, self.output_dir, took, facts, write_card=write_card)
        return result

    def _begin(self, guarded: guard.Guard) -> tuple[Any, Metrics | None]:
        """Build a Trainer and train; return it and rank 0's metrics. Every rank calls it."""
        from plsc import distributed
        from plsc.distributed.network import measure_network
        from plsc.training import build, finetune
        from plsc.training.plan_lines import plan_lines, weak_lines

        trainer = build.build_trainer(self.config, self._model, self._make_optimizer, signals=guarded)
        path = find_checkpoint(self.config, writes=True) if self.config.Global.resume else None
        start = finetune.Start([], {})
        if path:
            trainer.resume(path)
        elif self.config.Global.init_from:
            start = finetune.start_from(self.config, trainer.backbone, trainer.head, trainer.dataset)
            trainer.begin_at(start.step, start.rollbacks)
        metrics = None
        if distributed.rank() == 0:
            if not path:
                self._set_earlier_run_aside()
            setup(0, self.output_dir / "train.log")
            start.record(self.output_dir)
            per_epoch = trainer.loader.steps_per_epoch
            weak = weak_lines(self.config, per_epoch, trainer.evaluator.sets)
            for line in [*self._advice(distributed.world_size()), *weak]:
                get_logger().warning(line)
            for line in plan_lines(
                self.config,
                trainer.dataset,
                trainer.backbone,
                per_epoch,
                distributed.world_size(),
            ):
                get_logger().info(line)
            replace_file(self.output_dir / "config.yaml", self.config.to_yaml(sources=True).encode())
            metrics = Metrics(self.output_dir, trainer.step, self.config.Global.loggers)
        distributed.barrier()
        if (machines := environment.machines_from_env()) > 1:
            network = measure_network()
            get_logger().info(f"network: {distributed.world_size()} ranks on {machines} machines: {network}")
        trainer.train(metrics)
        return trainer, metrics

    def _stopped(self, guarded: guard.Guard, metrics: Metrics | None) -> dict[str, Any]:
        if metrics:
            metrics.close()
            again = "" if self.config.Global.resume or guarded.supervised else " and -o Global.resume=true"
            stopped = f"stopped on {guarded.stopped} at step {guarded.step}"
            get_logger().info(f"{stopped}; resume with the same command{again}")
        return {"stopped": guarded.stopped, "step": guarded.step, "output_dir": str(self.output_dir)}

    def evaluate(
        self,
        set_threshold: bool = False,
        compare: str | os.PathLike | None = None,
        calibrate: bool = False,
        groups: str | os.PathLike | None = None,
    ) -> dict[str, Any]:
        """Evaluate a checkpoint (Global.checkpoint, or the newest in output_dir) on the sets of DataLoader.Eval.

        Args:
            set_threshold: store the main set's threshold with the checkpoint, for `predict` and `export`.
            compare: another run's folder or results.json, for a second column in the tables.
            calibrate: store P(same) and the thresholds for FARs, by the main set, with the checkpoint, for `export` and galleries.
            groups: a file that names the group of identities or images, see plsc.evaluation.groups; they are compared.

        Prints the table and writes report and results.json to output_dir/test. Returns the main set's numbers.
        """
        self._start_on_data()
        from plsc import distributed
        from plsc.evaluation.groups import read_groups
        from plsc.evaluation.results import read_compared
        from plsc.training.evaluator import (
            build_saved_evaluator,
            build_saved_sets,
            main_pairs,
            refuse_other_flip,
            warn_of_other_flip,
        )

        if self.config.DataLoader.Eval.dataset is None:
            raise UserError("DataLoader.Eval.dataset: is null; name a data set to test on")
        saved = open_checkpoint(self.config)
        sets = build_saved_sets(self.config, saved)
        compared = read_compared(compare, sets) if compare else None
        for option, given in (("--set-threshold", set_threshold), ("--calibrate", calibrate)):
            if given:
                main_pairs(sets, option)
        if calibrate and not set_threshold:
            # A stored threshold may lie on rank 0's machine alone.
            distributed.run_on_rank_0(partial(refuse_other_flip, saved, self.config.DataLoader.Eval.flip))
        grouping = main_pairs(sets, "--groups").group(read_groups(groups)) if groups else None
        evaluator = build_saved_evaluator(self.config, saved, sets, self._model, grouping)
        evaluator.evaluate(saved.step)
        if distributed.rank() == 0:
            facts = {"checkpoint": str(saved.path), "step": saved.step}
            if set_threshold:
                evaluator.store_threshold(saved)
            if calibrate:
                evaluator.store_calibration(saved)
            elif set_threshold:
                warn_of_other_flip(saved, self.config.DataLoader.Eval.flip)
            how = f"checkpoint {saved.path}"
            finish(self.config, evaluator, self.output_dir / "test", how, facts, compared)
        return evaluator.row

    test = evaluate  # PLSC's name

    def write_card(self) -> Path:
        """Evaluate a checkpoint and write the run's model card (plsc/evaluation/card.py); return its path."""
        self._start_on_data()
        from plsc.training import card

        return card.write(self.config, open_checkpoint(self.config), self._model)

    def check_card(self, training_data: bool = True) -> Outcome:
        """Compare the run's model card with its files, its data and its evaluation; `training_data`: those too."""
        self._start_on_data()
        from plsc.evaluation.card import read_card
        from plsc.training import check_card

        return check_card.check(self.config, read_card(self.output_dir), self._model, training_data)

    def predict(
        self, images: str | os.PathLike | Sequence[str] | np.ndarray, output: str | os.PathLike | None = None
    ) -> tuple[np.ndarray, list[str]]:
        """Embed images by a checkpoint's backbone, L2-normalised: their inner products are the cosines.

        Args:
            images: a list file (a path a line, a label may follow), an image file, a list of image files, or an array of
                samples [n, *shape] in the dtype of training, or an .npy file of them.
            output: folder for embeddings.npy and names.txt; None: output_dir/predict.

        Returns: embeddings [n, D] float32, and the n names (paths, or "0", "1", ...).
        """
        start(self.config)
        from plsc import distributed
        from plsc.data.to_predict import samples_to_predict
        from plsc.training.embed import embed
        from plsc.training.evaluator import refuse_flip
        from plsc.training.trained import load_network

        saved = open_checkpoint(self.config)
        preprocessing = Preprocessing.from_json(saved.preprocessing)
        refuse_flip(self.config.DataLoader.Eval, preprocessing)
        read, names = samples_to_predict(images, preprocessing)
        if not names:
            raise UserError("predict: no images given, give at least one")
        evaluation, state = self.config.DataLoader.Eval, saved.state
        if evaluation.flip != state.flip and state.threshold is not None:
            warn(
                f"DataLoader.Eval.flip is {evaluation.flip}, the threshold of {saved.path.name} is of embeddings with {state.flip}"
            )
        backbone = load_network(saved, self.config, self._model).backbone
        sizes = evaluation.batch_size, evaluation.flip
        emb = embed(backbone, read, len(names), preprocessing, *sizes)
        emb = unit_rows(emb)
        if distributed.rank() == 0:
            folder = Path(output) if output else self.output_dir / "predict"
            _make_folder(folder, "output" if output else "Global.output_dir")
            with writing(folder, remedy="free some space, or name another folder"):
                replace_file(folder / "names.txt", names_text(names))
                with atomic_write(folder / "embeddings.npy") as beside, open(beside, "xb") as file:
                    np.save(file, emb)
            print(f"done: {len(names):,} embeddings of {emb.shape[1]} numbers in {folder / 'embeddings.npy'}")
        return emb, names

    def export(self, output: str | os.PathLike | None = None) -> dict[str, Any]:
        """Write a checkpoint's backbone to a folder in Export.formats, and compare each.

        Args:
            output: the folder; None: output_dir/export.

        Returns the facts of plsc.apps.export.export: files and largest differences.
        """
        start(self.config)
        from plsc import distributed
        from plsc.apps.export import export
        from plsc.apps.export.int8_data import int8_data
        from plsc.training.card import files_for_export
        from plsc.training.trained import load_network

        saved = open_checkpoint(self.config)
        network = load_network(saved, self.config, self._model)
        folder = Path(output) if output else self.output_dir / "export"

        def write() -> dict[str, Any]:
            facts = export(
                network.backbone,
                folder,
                formats=self.config.Export.formats,
                opset=self.config.Export.opset,
                preprocessing=network.preprocessing,
                threshold=saved.state.threshold,
                flip=saved.state.flip,
                threshold_set=saved.state.threshold_set,
                threshold_step=saved.state.threshold_step,
                calibration=saved.state.calibration,
                network=saved.network,
                compatible_with=saved.compatible_with,
                int8=partial(int8_data, self.config, saved),
                documents=files_for_export(self.output_dir, saved),
            )
            print(f"done: exported {saved.path} to {folder}")
            return facts

        return distributed.run_on_rank_0(write)

    def dry_run(self, ranks: int | None = None) -> str:
        """Return the resolved config with the source of each value, and the plan of the run.

        Trains nothing, starts no group, makes no head. `ranks`: for so many; None: for those of this launch, without one for
        those that DataLoader.Train.global_batch takes. The checkpoint Global.init_from is read and compared as by a start.
        """
        ranks = ranks or environment.world_size_from_env(default=self.config.DataLoader.Train.planned_ranks)
        self.config.check_ranks(ranks)
        check_data(self.config)
        check_packages(self.config.Global.loggers)
        environment.prepare(self.config.Global.threads)
        from plsc.distributed.device import decide, why_no_gpu
        from plsc.distributed.sync_batch_norm import synchronise
        from plsc.heads.optimizer import Frozen
        from plsc.training.build import (
            build_evaluation_sets,
            build_loader,
            build_optimizer,
            build_training_set,
        )
        from plsc.training.build_head import build_margin
        from plsc.training.compatible import head_of_old_classes, open_old_run
        from plsc.training.network import check_amp, layers_to_recompute
        from plsc.training.plan_lines import plan_lines, weak_lines
        from plsc.training.resume import build_backbone
        from plsc.training.teacher import build_teacher

        decide(self.config.Global.device, [why_no_gpu()])  # for what it refuses
        dataset = build_training_set(self.config)
        loader = build_loader(self.config, dataset, environment.rank_from_env(), ranks)
        backbone = self._model or build_backbone(self.config, dataset.preprocessing.shape)
        if self.config.Model.sync_batchnorm:  # these for what they refuse
            backbone = synchronise(backbone)
        build_optimizer(self.config, backbone, self._make_optimizer)
        layers_to_recompute(self.config.Model.recompute, backbone)
        build_margin(self.config.Head)
        check_amp(self.config.Global.amp)
        sets = build_evaluation_sets(self.config, dataset)
        weak = weak_lines(self.config, loader.steps_per_epoch, sets)
        plan = [f"WARNING {line}" for line in [*self._advice(ranks), *weak]]
        plan += plan_lines(self.config, dataset, backbone, loader.steps_per_epoch, ranks)
        if teacher := build_teacher(self.config, dataset, alone=True):
            plan.append(f"plan: teacher  {teacher}")
        if self.config.Global.compatible_with:
            old = open_old_run(self.config, dataset, alone=True)
            head = head_of_old_classes(self.config.Head)
            classes = split(dataset.num_classes, ranks)[0][1]
            size = format_rows(head, Frozen.moments, classes, self.config.Model.embedding_size)
            plan.append(
                f"plan: old      {old.saved.path}, to be compatible with; {classes:,} classes per rank, {size}"
            )
        resumes = self.config.Global.resume and any((self.output_dir / "checkpoints").glob("step-*"))
        if self.config.Global.init_from and not resumes:
            from plsc.training.finetune import check_start

            total_steps = self.config.Global.total_steps(loader.steps_per_epoch)
            plan.append(f"plan: start    {check_start(self.config, backbone, dataset, total_steps)}")
        return "\n".join([self.config.to_yaml(sources=True), *plan])

    # -- the parts of a verb --------------------------------------------------------------------------------------------------

    def _start_on_data(self) -> None:
        """Set the process up for a verb that reads the data sets of the evaluation, after a check of these."""
        self.config.check_data(training=False)
        start(self.config)

    def _advice(self, ranks: int) -> list[str]:
        return advice(self.config, ranks, environment.local_size_from_env())

    def _refuse_unread_checkpoint(self) -> None:
        """Refuse a named checkpoint that this training would not read; newest and best are for other verbs."""
        given = self.config.Global
        if given.checkpoint not in (None, "newest", "best") and not given.resume:
            where = self.config.source("Global.checkpoint")
            raise UserError(
                f"{where}: Global.checkpoint: training starts anew without Global.resume=true and would not read "
                f"{given.checkpoint}; set that to go on from it, or Global.init_from to begin a new run with its weights"
            )

    def _set_earlier_run_aside(self) -> None:
        """Move an earlier run's files to output_dir/previous-1, -2, ...: nothing is overwritten, nothing mixed up."""
        _make_folder(self.output_dir, "Global.output_dir")
        earlier = [self.output_dir / name for name in RUN_FILES if (self.output_dir / name).exists()]
        if not earlier:
            return
        number = 1
        while (aside := self.output_dir / f"previous-{number}").exists():
            number += 1
        aside.mkdir()
        for path in earlier:
            path.rename(aside / path.name)
        get_logger().warning(f"{self.output_dir} held an earlier run; its files are now in {aside}")


def _make_folder(folder: Path, key: str) -> None:
    with writing(f"{key}: {folder}", remedy="name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
