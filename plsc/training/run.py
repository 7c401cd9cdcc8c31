"""Train a config, from the first check to the report. `plsc train` calls `train`.

Try it: `plsc train -c configs/`.
"""

from pathlib import Path
from typing import Any

from plsc.checkpoint import store
from plsc.config import Config, load
from plsc.distributed import environment
from plsc.errors import UserError, in_one_line, writing
from plsc.training import watchdog
from plsc.training.metrics import Metrics
from plsc.training.run_folder import check_start, delete_run, how_to_resume, start, write_config
from plsc.utils.logging import get_logger, setup_logging
from plsc.utils.text import duration, plural


def train(cfg: Config, model: Any = None) -> dict[str, Any]:
    """Train to the end, evaluate, and write the report. Every rank calls it.

    Args:
        cfg: the run's config.
        model: layer to train instead of the config's backbone, or None.

    Returns the dict that `Entry.train` describes.
    """
    resumes, problem = False, None
    try:
        environment.refuse_ignored_nnodes()
        resumes = check_start(cfg, environment.world_size_from_env())
    except UserError as error:
        if environment.world_size_from_env() == environment.local_size_from_env():
            raise
        problem = error  # is raised after the ranks have met, so that other machines' ranks do not wait
    output_dir = Path(cfg.Global.output_dir)
    # `naming_places` adds the file and line to errors. The watchdog is the outer block, so that it logs the
    # complete errors.
    with watchdog.Watchdog(output_dir, cfg.Global.hang_seconds) as guarded, cfg.naming_places():
        threads = start(cfg.Global, problem or guarded.problem)
        from plsc.distributed.device import explained
        from plsc.heads.self_check import check_head
        from plsc.training.agreement import one_start
        from plsc.training.inference import finish

        with explained("lower DataLoader.Train.batch_size, or Head.logits_budget_mb"):
            check_head()
            guarded.listen()
            with one_start(cfg, resumes) as decided:
                trainer, metrics = _begin(cfg, decided, threads, guarded, model)
            trainer.train(metrics)
            evaluator = trainer.evaluator
            if evaluator.sets and evaluator.step is None and not trainer.stopped:
                # The run was resumed after its last step. metrics.jsonl contains this evaluation already.
                trainer.evaluate(metrics=None)
        if metrics:
            metrics.close()
        if trainer.stopped:
            get_logger().info(
                f"stopped on {trainer.stopped} at step {trainer.step}; {how_to_resume(cfg.Global)}"
            )
            return {"stopped": trainer.stopped, "step": trainer.step, "output_dir": str(output_dir)}
        failures = trainer.failures
        if metrics:
            facts = {"step": trainer.step, "best": trainer.checkpoints.best()}
            try:
                finish(cfg, evaluator, output_dir, f"took {duration(trainer.seconds)}", facts)
            except Exception as error:  # noqa: BLE001 (a failed report must not fail the training)
                failures.append(f"report: {in_one_line(error)}")
                get_logger().error(failures[-1])
            if failures:
                get_logger().error(
                    "the training is finished and its checkpoints are complete, but it logged "
                    f"{plural(len(failures), 'error')}, see above; correct what they name, and run plsc eval"
                )
        return {
            **(evaluator.row or {"accuracy": None}),
            "seconds": trainer.seconds,
            "output_dir": str(output_dir),
            **({"failures": failures} if failures else {}),
        }


def _begin(
    cfg: Config, decided: Any, threads: int, guarded: watchdog.Watchdog, model: Any
) -> tuple[Any, Metrics | None]:
    """Build a Trainer, and load the weights from which it resumes or starts. Every rank calls it.

    Args:
        cfg: the run's config.
        decided: the `Start` on which all ranks agreed.
        threads: thread count for this rank's matrix products.
        guarded: the run's watchdog.
        model: layer to train instead of the config's backbone, or None.

    Returns the Trainer and the Metrics. The Metrics are None except on rank 0.
    """
    from plsc import distributed
    from plsc.distributed.device import on_device
    from plsc.training.agreement import build_and_compare
    from plsc.training.build import build_trainer
    from plsc.training.dry_run import crowd_lines, plan_lines
    from plsc.training.init_from import initialise_from

    found = decided.checkpoint_of(cfg)
    path = found if decided.resumes else None

    def build() -> Any:
        nonlocal cfg
        if path and cfg.DataLoader.Train.global_batch is None:  # the world size may have changed
            run = store.Checkpoint.open(path, verify=False).plain("run")
            cfg = load(cfg, {"DataLoader.Train.global_batch": run.get("global_batch")})
        return build_trainer(cfg, model, watchdog=guarded)

    trainer = build_and_compare(cfg, decided, threads, build)
    output_dir = Path(cfg.Global.output_dir)

    def load_weights() -> list[str]:
        if path:
            trainer.resume(path)
        return (
            initialise_from(found, trainer.backbone, trainer.head, trainer.dataset) if found != path else []
        )

    # One machine may fail to read a checkpoint that the others can read. Then all ranks raise the error.
    notes = distributed.run_on_all_ranks(load_weights)
    metrics = None
    if distributed.rank() == 0:
        if path:
            with writing(output_dir / "checkpoints"):
                store.set_aside_after(output_dir / "checkpoints", trainer.step)
        else:
            delete_run(output_dir)
        setup_logging(0, output_dir / "train.log")
        crowd = [] if on_device() else crowd_lines(environment.local_size_from_env())
        for line in [*notes, *plan_lines(trainer), *crowd]:
            get_logger().info(line)
        write_config(cfg)
        metrics = Metrics(output_dir, trainer.step, cfg.Global.loggers)
    distributed.barrier()
    return trainer, metrics
