#!/usr/bin/env bash
# Train on two or more machines that ssh reaches without a password; what follows -- are plsc run's arguments:
#
#     tools/cluster/ssh.sh 10.0.0.1 10.0.0.2 -- --nproc_per_node 8 train -c configs/
#     NNODES=2:4 tools/cluster/ssh.sh a b c d -- --wait 120 --nproc_per_node 8 train -c configs/
#
# The first machine is --rank 0, and --master by the name given here, which all others must be able to reach. Each
# writes FOLDER/log/machine-R.log, which is shown here, too, with the machine before each line. Ctrl-C and SIGTERM
# go to every plsc run: the ranks save and stop. If the connection breaks, or the terminal is closed, the training
# goes on. The exit code is the first machine's; 255: ssh did not reach it, or lost it.
#
# From the environment:
#   FOLDER    the clone of the project on each machine (the present folder)
#   PLSC      the command there (plsc); that of a virtual environment is /path/to/venv/bin/plsc
#   NNODES    the fewest and the most machines, as 2:4 (the number of those given)
#   PORT      of the first machine (8090)
#   NCCL_*, GLOO_*, FLAGS_* and PLSC_RUN_SECRET are passed on to all machines.
set -euo pipefail

machines=()
while (($# > 0)) && [[ $1 != -- ]]; do
    machines+=("$1")
    shift
done
if ((${#machines[@]} == 0 || $# < 2)); then
    echo "usage: $0 HOST HOST ... -- --nproc_per_node N train -c CONFIG" >&2
    exit 2
fi
shift

folder=${FOLDER:-$PWD}
settings=()
for name in $(compgen -e | grep -E '^(NCCL|GLOO|FLAGS)_'); do
    settings+=("$name=${!name}")
done

on() { # machine, arguments: runs the script of stdin there with these arguments
    local machine=$1
    shift
    ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 "$machine" "bash -s -- ${*@Q}"
}

train() { # rank, arguments: runs plsc run there; the shell notes its process number, and becomes it
    local rank=$1
    shift
    {
        if [[ ${PLSC_RUN_SECRET+set} ]]; then # not as an argument, which all users of the machines can see
            printf 'export PLSC_RUN_SECRET=%q\n' "$PLSC_RUN_SECRET"
        fi
        cat <<'SCRIPT'
cd "$1" && mkdir -p "${2%/*}" && echo "$$" >"$2.pid" && : >"$2.log" || exit 1
log=$2.log
shift 2
tail --pid="$$" -f "$log" </dev/null &
exec env "$@" </dev/null >>"$log" 2>&1
SCRIPT
    } | on "${machines[rank]}" "$folder" "log/machine-$rank" "${settings[@]}" "${PLSC:-plsc}" run \
        --nnodes "${NNODES:-${#machines[@]}}" --rank "$rank" --master "${machines[0]#*@}:${PORT:-8090}" "$@"
}

# shellcheck disable=SC2329 # the handlers invoke it
pass_on() { # signal: sends it to the plsc run of each machine that has not ended
    for rank in "${!jobs[@]}"; do
        if kill -0 "${jobs[rank]}" 2>/dev/null; then
            on "${machines[rank]}" "$1" "$folder/log/machine-$rank.pid" <<'SCRIPT' || true
kill -s "$1" "$(cat "$2")"
SCRIPT
        fi
    done
}

finish() { # job: waits for its end and returns its exit code; a signal interrupts the wait
    local code
    while true; do
        code=0
        wait "$1" || code=$?
        kill -0 "$1" 2>/dev/null || return "$code"
    done
}

# The handlers pass a signal on themselves: it may come while no wait has begun yet.
asked=""
trap 'asked=130; pass_on INT' INT
trap 'asked=143; pass_on TERM' TERM
jobs=()
for rank in "${!machines[@]}"; do
    [[ $asked ]] && break
    (train "$rank" "$@" 2>&1 | sed -u "s/^/${machines[rank]}: /") &
    jobs+=($!)
done
codes=()
for job in "${jobs[@]}"; do
    finish "$job" && codes+=(0) || codes+=($?)
done
exit "${codes[0]:-$asked}"
