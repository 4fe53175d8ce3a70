#!/usr/bin/env bash
# Installs the programs of other projects that tests need: librabbitmq's amqp-tools and node with
# npm to talk to brokers, Java for Spark, chromium and its driver to look at the console, and RabbitMQ's
# script rabbitmqadmin without its server. Does nothing where they are present, and says what is missing
# where it can't install them; the tests that need them are then skipped with the same words.
set -u

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
command -v amqp-publish >/dev/null || missing+=(amqp-tools)
command -v node >/dev/null || missing+=(nodejs)
command -v npm >/dev/null || missing+=(npm)
command -v java >/dev/null || missing+=(openjdk-17-jre-headless)
command -v chromium >/dev/null || missing+=(chromium)
command -v chromedriver >/dev/null || missing+=(chromium-driver)
scripts=()
command -v rabbitmqadmin >/dev/null || scripts+=(rabbitmqadmin)
[ ${#missing[@]} -eq 0 ] && [ ${#scripts[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed: ${missing[*]} ${scripts[*]} (needs root and apt-get; run: sudo $0)." \
         "Tests that need them will be skipped." >&2
    exit 0
fi
echo "installing ${missing[*]} ${scripts[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
if [ ${#missing[@]} -gt 0 ]; then
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
        echo "could not install ${missing[*]}; tests that need them will be skipped." >&2
fi
if [ ${#scripts[@]} -gt 0 ]; then
    install_rabbitmqadmin ||
        echo "could not install rabbitmqadmin; tests that need it will be skipped." >&2
fi
