strandline_archive() {
  local folder="${SPARK_HOME:-}/strandline" java="${JAVA_HOME:+$JAVA_HOME/bin/java}" file size=0
  [ "${1:-}" = org.apache.spark.deploy.SparkSubmit ] || return 0
  [ -f "$folder/classes.jsa" ] && [ -r "$folder/classes.jsa" ] || return 0
  [ "${java:-$(command -v java)}" -ef "$folder/java" ] || return 0
  [ "${SPARK_CONF_DIR:-}" -ef "$SPARK_HOME/conf" ] || return 0
  # the JVM crashes on an archive that was cut short, as a copy may be
  read -r _ size _ 2> /dev/null < "$folder/fingerprint" || return 0
  [ "$(wc -c < "$folder/classes.jsa")" -eq "${size:-0}" ] 2> /dev/null || return 0
  for file in "$SPARK_CONF_DIR"/*; do
    case "${file##*/}" in spark-env.sh | log4j2.properties | *.template) ;; *) return 0 ;; esac
  done
  local said=" ${SPARK_SUBMIT_OPTS:-} ${JAVA_TOOL_OPTIONS:-}"
  said="$said ${JDK_JAVA_OPTIONS:-} ${_JAVA_OPTIONS:-}"
  while [ $# -gt 0 ]; do
    said="$said $1"
    [ "$1" = --properties-file ] && [ -r "${2:-}" ] && said="$said $(cat "$2")"
    shift
  done
  case "$said" in
    *-Xshare:* | *SharedArchiveFile* | *ArchiveClassesAtExit*) return 0 ;;
    # the JVM crashes where an agent asks to see classes of an archive
    *-javaagent:* | *-agentlib:* | *-agentpath:* | *-Xrun* | *StartFlightRecording*) return 0 ;;
    # a file of options, which may name one
    *[[:space:]=\"\']@* | *VMOptionsFile* | *-XX:Flags=*) return 0 ;;
  esac
  local modest="{modest}" cores
  # nproc would tell OpenMP's number of threads
  cores="$(unset OMP_NUM_THREADS OMP_THREAD_LIMIT
    nproc 2> /dev/null || getconf _NPROCESSORS_ONLN 2> /dev/null)" || cores=4
  [ "$cores" -gt 2 ] || modest={serial}
  # whoever tunes the collector does so alone
  case "$said" in *-XX:*GC* | *-XX:*G1* | *HeapOccupancy* | *Deduplication*) modest= ;; esac
  case "$SPARK_HOME" in *[[:space:]\'\"\\]*) return 0 ;; esac # it may have been moved there
  SPARK_HOME="$(cd -P "$SPARK_HOME" && pwd)" # the JVM compares paths as texts
  folder="$SPARK_HOME/strandline"
  file="$SPARK_HOME/conf/log4j2.properties"
  # Java reads JAVA_TOOL_OPTIONS before ours, and obeys the last: what is in it is not said again
  if [ -f "$file" ] && [ -z "${LOG4J_CONFIGURATION_FILE:-}" ]; then
    case "$said" in
      *log4j*onfiguration*ile=*) ;;
      *) SPARK_SUBMIT_OPTS="-Dlog4j.configurationFile=$file ${SPARK_SUBMIT_OPTS:-}" ;;
    esac
  fi
  # Spark's launcher is a JVM of its own, which would look for its few classes in jar after jar
  for file in "$SPARK_HOME"/jars/spark-launcher_*.jar; do
    SPARK_LAUNCHER_OPTS="-Xbootclasspath/a:$file ${SPARK_LAUNCHER_OPTS:-}"
  done
  local patient="{patient}" uncounted="{uncounted}" started=
  case "$said" in *-XX:Tier4*) patient= ;; esac
  case "$said" in *C1Profile*) uncounted= ;; esac
  # Hadoop starts chmod for each file of a process's first batches: this starts it in half the time
  case "${OSTYPE:-}$said" in
    *launchMechanism*) ;;
    linux*) started=-Djdk.lang.Process.launchMechanism=VFORK ;;
  esac
  SPARK_SUBMIT_OPTS="$patient $uncounted $modest $started ${SPARK_SUBMIT_OPTS:-}"
  SPARK_SUBMIT_OPTS="-XX:SharedArchiveFile=$folder/classes.jsa {quiet} $SPARK_SUBMIT_OPTS"
  SPARK_CONF_DIR="$folder/no-conf"
}
strandline_archive "$@"
unset -f strandline_archive
