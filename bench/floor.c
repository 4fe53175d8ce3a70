/*
 * floor.c - the latency that amqpload would see of a broker that costs nothing.
 *
 *   gcc -O2 -Wall -Wextra -o floor floor.c && ./floor [--poll] [RATE [SECONDS]]
 *
 * A process that forwards bytes from one socket to another, and a client that sends and receives as
 * amqpload does with --rate: one epoll loop, paced by its timeout, every message stamped with the
 * time at which it was due. So the figures hold what timers, wake-ups and loopback cost here, which
 * is in every broker's latency, too. --poll: the forwarder never sleeps.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE_BYTES 200 /* a publish of 128 bytes, with its frames */
#define MESSAGES_MAX 1000000

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static int by_value(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return a < b ? -1 : a > b;
}

static int watched(int socket) {
    struct epoll_event readable = {.events = EPOLLIN};
    int epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, socket, &readable);
    return epoll;
}

static void forward(int listener, int polls) {
    int from = accept(listener, NULL, NULL), to = accept(listener, NULL, NULL);
    int epoll = watched(from), on = 1;
    char bytes[65536];
    setsockopt(to, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    for (;;) {
        struct epoll_event event;
        if (epoll_wait(epoll, &event, 1, polls ? 0 : -1) < 1) continue;
        ssize_t got = recv(from, bytes, sizeof bytes, 0);
        if (got <= 0 || send(to, bytes, (size_t)got, 0) != got) _exit(0);
    }
}

static int connected(const struct sockaddr_in *address) {
    int made = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (connect(made, (const struct sockaddr *)address, sizeof *address)) exit(2);
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return made;
}

int main(int count, char **words) {
    int polls = count > 1 && strcmp(words[1], "--poll") == 0;
    double rate = count > 1 + polls ? atof(words[1 + polls]) : 5000;
    double seconds = count > 2 + polls ? atof(words[2 + polls]) : 4;
    uint64_t wanted = (uint64_t)(rate * seconds), interval_ns = (uint64_t)(1e9 / rate);
    if (rate <= 0 || wanted < 1 || wanted > MESSAGES_MAX) {
        fprintf(stderr, "usage: floor [--poll] [RATE [SECONDS]], at most %d messages\n", MESSAGES_MAX);
        return 2;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 2)) return 2;
    getsockname(listener, (struct sockaddr *)&address, &size);
    pid_t forwarder = fork();
    if (forwarder == 0) forward(listener, polls);

    int out = connected(&address), in = connected(&address), epoll = watched(in);
    uint64_t *taken_ns = calloc(wanted + 65536 / MESSAGE_BYTES, sizeof *taken_ns);
    uint64_t begun = now_ns(), sent = 0, received = 0;
    char bytes[65536] = {0};
    size_t kept = 0;
    prctl(PR_SET_TIMERSLACK, 1000);
    while (received < wanted) {
        uint64_t due = begun + (sent + 1) * interval_ns, now = now_ns();
        if (sent < wanted && now >= due) {
            char message[MESSAGE_BYTES] = {0};
            memcpy(message, &due, sizeof due);
            if (send(out, message, sizeof message, 0) != sizeof message) return 2;
            sent++;
            continue;
        }
        uint64_t wait = sent < wanted ? due - now : 1000000000ull;
        struct timespec timeout = {(time_t)(wait / 1000000000ull), (long)(wait % 1000000000ull)};
        struct epoll_event event;
        if (epoll_pwait2(epoll, &event, 1, &timeout, NULL) < 1) continue;
        ssize_t got = recv(in, bytes + kept, sizeof bytes - kept, 0);
        uint64_t came = now_ns();
        if (got <= 0) return 2;
        kept += (size_t)got;
        size_t at = 0;
        for (; kept - at >= MESSAGE_BYTES; at += MESSAGE_BYTES) {
            uint64_t stamp;
            memcpy(&stamp, bytes + at, sizeof stamp);
            taken_ns[received++] = came - stamp;
        }
        memmove(bytes, bytes + at, kept - at);
        kept -= at;
    }
    kill(forwarder, SIGKILL);
    waitpid(forwarder, NULL, 0);
    qsort(taken_ns, received, sizeof *taken_ns, by_value);
    printf("%s p50 %.0f us, p99 %.0f us, p99.9 %.0f us\n", polls ? "polls: " : "sleeps:",
           (double)taken_ns[received / 2] / 1e3, (double)taken_ns[received * 99 / 100] / 1e3,
           (double)taken_ns[received * 999 / 1000] / 1e3);
    return 0;
}
