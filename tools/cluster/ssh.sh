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

running() { # rank: whether its plsc run has not ended
    kill -0 "${jobs[$1]}" 2>/dev/null
}

pass_on() { # sends the signal that was asked for to each plsc run that has not got it
    for rank in "${!jobs[@]}"; do
        if [[ ${told[rank]:-} ]] || ! running "$rank"; then continue; fi
        on "${machines[rank]}" "$asked" "$folder/log/machine-$rank.pid" <<'SCRIPT' && told[rank]=1 || true
kill -s "$1" "$(cat "$2")"
SCRIPT
    done
}

# The handlers only note the signal, and nothing waits for a job that runs: a signal is never lost between the start
# of a job and the note of its number, or just before a wait. What did not reach a machine is sent again.
asked=""
told=()
trap 'asked=INT code=130 told=()' INT
trap 'asked=TERM code=143 told=()' TERM
jobs=()
for rank in "${!machines[@]}"; do
    [[ $asked ]] && break
    (train "$rank" "$@" 2>&1 | sed -u "s/^/${machines[rank]}: /") &
    jobs+=($!)
done
codes=()
for rank in "${!jobs[@]}"; do
    while running "$rank"; do
        [[ $asked ]] && pass_on
        sleep 0.2 || true
    done
    wait "${jobs[rank]}" && codes+=(0) || codes+=($?)
done
exit "${codes[0]:-$code}" # no machine was started: the signal came before
