"""tools/cluster/*.yaml: the API's schemas accept them, and their pods start plsc run as it wants to be
started."""

import copy
import re
from typing import Annotated, Literal

import pytest
import yaml
from pydantic import BaseModel, Field, ValidationError

from tests.cluster_files.stand_ins import FOLDER, read_command

VERSION = "1.33"  # of Kubernetes; kubernetes-job.yaml says so


def load(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


SERVICE, JOB = load("kubernetes-job.yaml")
(PADDLEJOB,) = load("paddlejob.yaml")


# ---- schemas


class Strict(BaseModel):
    model_config = {"extra": "forbid", "strict": True}


Count = Annotated[int, Field(ge=1)]


class RunPolicy(Strict):
    cleanPodPolicy: Literal["All", "Running", "None"] = "None"
    ttlSecondsAfterFinished: Count = 1
    activeDeadlineSeconds: Count = 1
    backoffLimit: int = 0
    schedulingPolicy: dict = {}
    suspend: bool = False
    managedBy: str = ""


class Replicas(Strict):
    replicas: Count = 1
    restartPolicy: Literal["Always", "OnFailure", "Never", "ExitCode"]
    template: dict  # validated by Kubernetes' own schema


class Specification(Strict):
    runPolicy: RunPolicy = RunPolicy()
    elasticPolicy: dict = {}
    paddleReplicaSpecs: dict[Literal["Master", "Worker"], Replicas]


class PaddleJob(Strict):
    """kubeflow.org/v1 PaddleJob, after manifests/base/crds/kubeflow.org_paddlejobs.yaml of training-operator
    1.9."""

    apiVersion: Literal["kubeflow.org/v1"]
    kind: Literal["PaddleJob"]
    metadata: dict
    spec: Specification


def refusal(resource):
    """Why the API would refuse a resource, None if it would not. The pods of a PaddleJob are those of a
    PodTemplate."""
    validation = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    if resource["kind"] == "PaddleJob":
        try:
            job = PaddleJob.model_validate(resource)
        except ValidationError as error:
            return str(error)
        template = job.spec.paddleReplicaSpecs["Worker"].template
        resource = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": job.metadata, "template": template}
    try:
        validation.validate(resource, VERSION, strict=True)
    except validation.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    return None


@pytest.mark.parametrize("resource", [SERVICE, JOB, PADDLEJOB], ids=lambda resource: resource["kind"])
def test_the_schemas_accept_the_files(resource):
    assert refusal(resource) is None


def fields(node, path=()):
    """The paths of all keys that the API defines; names that the user chooses are not among them."""
    free = ("matchLabels", "selector", "annotations", "labels", "limits", "requests", "metadata")
    for key, value in (
        node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    ):
        if isinstance(key, str):
            yield (*path, key)
        if key not in free:
            yield from fields(value, (*path, key))


def misspell(resource, path):
    changed = copy.deepcopy(resource)
    node = changed
    for key in path[:-1]:
        node = node[key]
    node[f"{path[-1]}s"] = node.pop(path[-1])
    return changed


@pytest.mark.parametrize("resource", [SERVICE, JOB, PADDLEJOB], ids=lambda resource: resource["kind"])
def test_the_schemas_refuse_each_misspelled_field(resource):
    paths = [path for path in fields(resource) if path not in [("apiVersion",), ("kind",)]]
    assert len(paths) > 5
    assert [path for path in paths if not refusal(misspell(resource, path))] == []


def test_the_schemas_refuse_wrong_values():
    job = copy.deepcopy(JOB)
    job["spec"]["completions"] = "two"
    assert "two" in refusal(job)
    paddlejob = copy.deepcopy(PADDLEJOB)
    paddlejob["spec"]["paddleReplicaSpecs"]["Worker"]["restartPolicy"] = "Sometimes"
    assert "restartPolicy" in refusal(paddlejob)


# ---- what the pods start


def started(container, index):
    """What plsc run makes of command and args, in which the kubelet puts the container's variables."""
    variables = {"JOB_COMPLETION_INDEX": str(index), "REPLICA_INDEX": str(index)}
    words = [*container["command"], *container["args"]]
    words = [re.sub(r"\$\((\w+)\)", lambda named: variables[named[1]], word) for word in words]
    return read_command(words[words.index("run") + 1 :])


def pods(resource):
    """What makes the pods, a pod, and its container."""
    spec = resource["spec"] if resource is JOB else resource["spec"]["paddleReplicaSpecs"]["Worker"]
    return spec, spec["template"]["spec"], spec["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("resource, replicas", [(JOB, "completions"), (PADDLEJOB, "replicas")])
def test_each_pod_is_one_machine_of_the_run(resource, replicas):
    spec, _, container = pods(resource)
    for index in range(spec[replicas]):
        options, _ = started(container, index)
        assert options.machines[:3] == (spec[replicas], spec[replicas], index)
        assert options.ranks == container["resources"]["limits"]["nvidia.com/gpu"]


@pytest.mark.parametrize("resource", [JOB, PADDLEJOB], ids=lambda resource: resource["kind"])
def test_the_paths_of_the_program_are_volumes(resource):
    _, pod, container = pods(resource)
    _, cfg = started(container, 0)
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert {volume["name"] for volume in pod["volumes"]} == set(mounted.values())
    data = f"{container['workingDir']}/{cfg.DataLoader.Train.dataset.path}"
    for path in (cfg.Global.output_dir, data, "/dev/shm/nccl"):
        assert any(path.startswith(f"{mount}/") for mount in mounted), path


def test_the_job_finds_its_first_pod_by_the_service():
    spec, pod, container = pods(JOB)
    name = JOB["metadata"]["name"]
    assert f"--master={name}-0.{SERVICE['metadata']['name']}:8090" in container["args"]
    assert pod["subdomain"] == SERVICE["metadata"]["name"] and SERVICE["spec"]["clusterIP"] == "None"
    assert SERVICE["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert SERVICE["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"] == 8090
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] == spec["completions"]


def test_the_job_starts_a_stopped_pod_again_and_not_one_with_a_mistake():
    _, _, container = pods(JOB)
    actions = {}
    for rule in JOB["spec"]["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes", {"values": []})
        assert codes.get("containerName", container["name"]) == container["name"]
        actions.update(dict.fromkeys(codes["values"], rule["action"]))
    assert actions == {2: "FailJob", 143: "Ignore"}


def test_the_paddlejob_is_as_its_operator_wants_it():
    spec, _, container = pods(PADDLEJOB)
    assert container["name"] == "paddle" and container["ports"] == [{"name": "master", "containerPort": 8090}]
    assert f"--master={PADDLEJOB['metadata']['name']}-worker-0:8090" in container["args"]
    assert spec["restartPolicy"] == "ExitCode"
    _, index = container["env"]
    assert (
        index["valueFrom"]["fieldRef"]["fieldPath"]
        == "metadata.labels['training.kubeflow.org/replica-index']"
    )
