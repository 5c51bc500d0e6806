#!/usr/bin/env bash
# Print the home of a Java 17 or 21, which Spark 4 needs: JAVA_HOME if it is one, else `java` on PATH, else one
# installed at a usual place. Without one, a single message says what was found and how to get it.
set -euo pipefail

# "version home" of a java command, or nothing. Asked of Java itself: `java` on PATH may be a link or a launcher.
describe() {
    "$1" -XshowSettings:properties -version 2>&1 | awk -F' = ' '
        /^ *java.specification.version = / { version = $2 }
        /^ *java.home = / { home = $2 }
        END { if (version != "") print version, home }'
}

candidates() {
    if [ -n "${JAVA_HOME:-}" ]; then echo "$JAVA_HOME/bin/java"; fi
    command -v java || true
    for home in /usr/lib/jvm/* /usr/java/* /opt/java/* "${HOME:-/}"/.sdkman/candidates/java/* \
        /Library/Java/JavaVirtualMachines/*/Contents/Home \
        /opt/homebrew/opt/openjdk@{17,21} /usr/local/opt/openjdk@{17,21}; do
        echo "$home/bin/java"
    done
}

found=""
while IFS= read -r java; do
    [ -x "$java" ] || continue
    said="$(describe "$java" || true)"
    version="${said%% *}"
    case "$version" in
        17 | 21)
            if [ -n "$found" ]; then echo "Using Java $version in ${said#* } (Java 17 or 21 is needed; also found: $found)." >&2; fi
            echo "${said#* }"
            exit 0
            ;;
        "") ;;
        *) found="${found:+$found, }Java $version ($java)" ;;
    esac
done < <(candidates)

if [ -n "${JAVA_HOME:-}" ] && [ ! -x "$JAVA_HOME/bin/java" ]; then
    found="${found:+$found, }JAVA_HOME=$JAVA_HOME, which has no bin/java"
fi
cat >&2 <<EOF
Java 17 or 21 is needed to run Spark; found: ${found:-no Java}.
Install one, then run this again (or set JAVA_HOME to one that you have):
  Debian, Ubuntu:  apt install openjdk-17-jre-headless
  macOS:           brew install openjdk@17
  any system:      Eclipse Temurin 17 or 21 from Adoptium
EOF
exit 1
