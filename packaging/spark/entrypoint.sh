#!/usr/bin/env bash
# What Kubernetes runs in a pod of an executor. Spark says all it has to say in the environment:
# SPARK_DRIVER_URL, SPARK_EXECUTOR_ID, and options of the JVM as SPARK_JAVA_OPT_0, 1, ...
# With other arguments than `executor` those are the command: a worker of a standalone cluster, a shell.
set -euo pipefail

if [ "${1:-}" != executor ]; then
    exec "$@"
fi
shift

options=()
number=0
while name=SPARK_JAVA_OPT_$number; [ -n "${!name+set}" ]; do
    options+=("${!name}")
    number=$((number + 1))
done
classpath="${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*${SPARK_EXTRA_CLASSPATH:+:$SPARK_EXTRA_CLASSPATH}"

exec "${TINI:-tini}" -s -- "${JAVA_HOME:+$JAVA_HOME/bin/}java" "${options[@]}" \
    "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classpath" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
