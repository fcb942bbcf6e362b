#!/bin/sh
# Enters a job's ranks into Prometheus's file_sd folder. Call it at the top of a batch script, before srun:
#
#   export TRAINBUDGET_TARGETS=/shared/prometheus/targets      # a folder Prometheus sees as targets/
#   . prolog.sh
#
# It writes one file a job and removes it when the script ends, however it ends. Every node serves as many ports, from
# TRAINBUDGET_PORT (9837) on, as it has tasks. TRAINBUDGET_LISTEN is set so that Prometheus can reach them.
: "${TRAINBUDGET_TARGETS:?set TRAINBUDGET_TARGETS to the folder of targets}"
: "${SLURM_JOB_ID:?this is no Slurm job}"
TRAINBUDGET_PORT=${TRAINBUDGET_PORT:-9837}
export TRAINBUDGET_LISTEN="0.0.0.0:${TRAINBUDGET_PORT}"

trainbudget_hosts() {
    if command -v scontrol >/dev/null 2>&1; then
        scontrol show hostnames "${SLURM_JOB_NODELIST}"
    else
        printf '%s\n' "${SLURM_JOB_NODELIST}" | tr ',' '\n'
    fi
}

trainbudget_targets() {
    tasks=${SLURM_NTASKS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}
    printf '[{"targets": ['
    separator=''
    for host in $(trainbudget_hosts); do
        rank=0
        while [ "${rank}" -lt "${tasks}" ]; do
            printf '%s"%s:%s"' "${separator}" "${host}" "$((TRAINBUDGET_PORT + rank))"
            separator=', '
            rank=$((rank + 1))
        done
    done
    # Labels of the target, not of the metrics: they say where to look in Slurm.
    printf '], "labels": {"slurm_job": "%s", "slurm_user": "%s"}}]\n' "${SLURM_JOB_ID}" "${SLURM_JOB_USER:-$(id -un)}"
}

trainbudget_file="${TRAINBUDGET_TARGETS}/slurm-${SLURM_JOB_ID}.json"
# Prometheus must never see half a file: written beside, moved over.
trainbudget_targets > "${trainbudget_file}.tmp" && mv "${trainbudget_file}.tmp" "${trainbudget_file}"
# A script with an EXIT trap of its own calls `rm -f "${trainbudget_file}"` there instead.
trap 'rm -f "${trainbudget_file}"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
