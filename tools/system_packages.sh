#!/usr/bin/env bash
# Installs programs of other projects that tests need, with apt-get, if it is run as root. It says what
# and why before it does. Where it may not or can't, it says what is missing; the tests that need it are
# then skipped with the same words.
#
#     tools/system_packages.sh [PROGRAM ...]    those that are missing of these, or of all
#     SYSTEM_PACKAGES=no                        install nothing (make test SYSTEM_PACKAGES=no)
#
# Nothing of it is needed to run a broker.
set -u

all=(amqp-publish node npm java chromium chromedriver curl rabbitmqadmin)
declare -A package_of=(
    [amqp-publish]=amqp-tools
    [node]=nodejs
    [npm]=npm
    [java]=openjdk-17-jre-headless
    [chromium]=chromium
    [chromedriver]=chromium-driver
    [curl]=curl
    [rabbitmqadmin]=rabbitmqadmin
)
declare -A why=(
    [amqp-publish]="librabbitmq talks to a broker (tests/interop)"
    [node]="amqplib talks to a broker (tests/interop, tests/process)"
    [npm]="fetches amqplib for that"
    [java]="Spark runs on it (tests/spark, make pipeline)"
    [chromium]="looks at the console (tests/console)"
    [chromedriver]="drives that browser (tests/console)"
    [curl]="some pages of docs ask the HTTP API with it (tests/process)"
    [rabbitmqadmin]="RabbitMQ's own tool talks to the HTTP API (tests/conformance): this one script of its package, not the server"
)

# One file of a package that would start a broker of its own.
install_rabbitmqadmin() {
    local directory
    directory=$(mktemp -d) || return 1
    (
        cd "$directory" && apt-get download -qq rabbitmq-server >/dev/null 2>&1 &&
            dpkg-deb -x rabbitmq-server_*.deb . && install -m 755 usr/bin/rabbitmqadmin /usr/local/bin/
    )
    local result=$?
    rm -rf "$directory"
    return $result
}

missing=()
for program in "${@:-${all[@]}}"; do
    if [ -z "${package_of[$program]:-}" ]; then
        echo "$0: unknown program '$program'; known are ${all[*]}" >&2
        exit 2
    fi
    command -v "$program" >/dev/null || missing+=("$program")
done
[ ${#missing[@]} -eq 0 ] && exit 0

packages=()
scripts=()
for program in "${missing[@]}"; do
    if [ "$program" = rabbitmqadmin ]; then scripts+=("$program"); else packages+=("${package_of[$program]}"); fi
done
names="${packages[*]:-} ${scripts[*]:-}"

if [ "${SYSTEM_PACKAGES:-yes}" = no ]; then
    echo "not installed: $names (SYSTEM_PACKAGES=no). Tests that need them will be skipped." >&2
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed: $names (needs root and apt-get; run: sudo $0)." \
         "Tests that need them will be skipped." >&2
    exit 0
fi
echo "You are root, so this installs with apt-get what tests need and this machine lacks:"
for program in "${missing[@]}"; do
    printf '    %-26s %s\n' "${package_of[$program]}" "${why[$program]}"
done
echo "Without it those tests are skipped: SYSTEM_PACKAGES=no installs nothing."
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
if [ ${#packages[@]} -gt 0 ]; then
    apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null ||
        echo "could not install ${packages[*]}; tests that need them will be skipped." >&2
fi
if [ ${#scripts[@]} -gt 0 ]; then
    install_rabbitmqadmin ||
        echo "could not install rabbitmqadmin; tests that need it will be skipped." >&2
fi
