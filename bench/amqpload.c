/*
 * amqpload.c - a cheap raw-socket AMQP 0-9-1 load generator.
 *
 *   gcc -O2 -Wall -Wextra -pthread -o amqpload amqpload.c
 *
 * No client library.  Publish frames (method + header + body) are pre-built
 * once in a batch buffer; per message only a 16 byte stamp is patched in.
 * Consumers scan frames in place.  One or more epoll threads (--threads).
 *
 * Works against any AMQP 0-9-1 broker: it negotiates tune, declares its own
 * queues / exchange / bindings (prefix --prefix) and deletes them at the end.
 *
 * Honesty checks (a broker cannot cheat):
 *   - every body carries  u16 publisher | u48 sequence | u64 timestamp(ns)
 *   - per (consumer, publisher): sequences strictly increase; when the queue
 *     has exactly one consumer they must be gap-free (+1).
 *   - number AND checksum (sum of mixed sequence numbers) of consumed messages
 *     equal those published (x number of queues bound for fanout).
 *   - body length and last byte are verified, delivery tags must be 1,2,3...
 *   - confirms are tracked in a bitmap: unknown/duplicate confirms are errors.
 *   - after the drain the queues are passively re-declared: message_count
 *     must be 0.
 * Exit status is 0 only if all checks pass ("ok":true in the JSON line).
 *
 * Timeline: setup | warmup (--warmup) | steady window (--seconds) | drain.
 * Rates, latency and CPU figures are of the steady window only.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FRAME_END 0xCE
#define STAMP 16            /* bytes of stamp at the start of each body     */
#define MAXPIDS 64
#define MAXPUBS 4096
#define KEY_DIGITS 8        /* --keys: the key is load.00000000.key ...     */
#define RBUF (512 * 1024)   /* receive buffer; grows if a frame needs more  */

/* ------------------------------------------------------------ options -- */
static struct {
    const char *host, *user, *pass, *vhost, *prefix, *qtype, *name;
    int port, publishers, consumers, queues, body, persistent, durable;
    int confirm;            /* window of unconfirmed messages, 0 = off       */
    int ack;                /* prefetch for manual ack, 0 = auto-ack         */
    int ack_every;          /* multiple=true ack every N (0 = prefetch/4)    */
    int ack_single;         /* ack each message with multiple=false          */
    int fanout, direct, topic, mandatory;
    double seconds, warmup, rate, drain;
    int latency, json, threads, batch_bytes, keep;
    long inflight;          /* closed loop: max published-consumed, 0 = off  */
    int keys;               /* topic: distinct routing keys, 0 = one each      */
    long count;             /* publish exactly this many in all, 0 = by time  */
    int reuse;              /* keep what is in the queues, declare only       */
    int pids[MAXPIDS], npids;
} O = { .host = "127.0.0.1", .user = "guest", .pass = "guest", .vhost = "/",
        .prefix = "amqpload", .qtype = NULL, .name = "", .port = 5672,
        .publishers = 1, .consumers = 1, .queues = 1, .body = 128,
        .seconds = 5, .warmup = 1, .drain = 10, .threads = 1,
        .batch_bytes = 65536 };

static void die(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "amqpload: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    exit(2);
}
static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void *xmalloc(size_t n) {
    void *p = malloc(n);
    if (!p) die("out of memory (%zu)", n);
    return p;
}

/* ---------------------------------------------------- wire primitives -- */
static inline uint16_t rd16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static inline uint32_t rd32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }
static inline uint64_t rd64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static inline void wr64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }

struct buf { uint8_t *p; size_t len, cap, off; };
static void need(struct buf *b, size_t n) {
    if (b->len + n > b->cap) {
        b->cap = (b->len + n) * 2 + 256;
        b->p = realloc(b->p, b->cap);
        if (!b->p) die("out of memory");
    }
}
static void p8(struct buf *b, unsigned v) { need(b, 1); b->p[b->len++] = (uint8_t)v; }
static void p16(struct buf *b, unsigned v) { p8(b, v >> 8); p8(b, v); }
static void p32(struct buf *b, uint32_t v) { p16(b, v >> 16); p16(b, v & 0xffff); }
static void p64(struct buf *b, uint64_t v) { p32(b, v >> 32); p32(b, (uint32_t)v); }
static void praw(struct buf *b, const void *s, size_t n) { need(b, n); memcpy(b->p + b->len, s, n); b->len += n; }
static void pshort(struct buf *b, const char *s) { size_t n = strlen(s); if (n > 255) die("shortstr too long"); p8(b, n); praw(b, s, n); }
static void plong(struct buf *b, const void *s, size_t n) { p32(b, n); praw(b, s, n); }
/* frame helpers: fbegin returns the offset of the frame, fend fixes size */
static size_t fbegin(struct buf *b, int type, int ch) { size_t o = b->len; p8(b, type); p16(b, ch); p32(b, 0); return o; }
static void fend(struct buf *b, size_t o) {
    uint32_t n = htonl((uint32_t)(b->len - o - 7));
    memcpy(b->p + o + 3, &n, 4);
    p8(b, FRAME_END);
}
static size_t mbegin(struct buf *b, int ch, int cls, int mth) { size_t o = fbegin(b, 1, ch); p16(b, cls); p16(b, mth); return o; }

/* ---------------------------------------------------------- histogram -- */
/* log-linear: 64 linear sub-buckets per power of two => <1.6% error       */
#define HB (64 * 58)
struct hist { uint64_t n, max, b[HB]; };
static inline int hidx(uint64_t v) {
    if (v < 64) return (int)v;
    int e = 63 - __builtin_clzll(v) - 6;            /* v >> e is in [64,128) */
    return (e + 1) * 64 + (int)((v >> e) - 64);
}
static uint64_t hval(int i) {
    if (i < 64) return i;
    int e = i / 64 - 1;
    return ((uint64_t)(i % 64 + 64) << e) + ((1ull << e) >> 1);
}
static inline void hadd(struct hist *h, uint64_t v) { h->b[hidx(v)]++; h->n++; if (v > h->max) h->max = v; }
static void hmerge(struct hist *d, const struct hist *s) {
    for (int i = 0; i < HB; i++) d->b[i] += s->b[i];
    d->n += s->n;
    if (s->max > d->max) d->max = s->max;
}
static double hpct(const struct hist *h, double q) {        /* microseconds */
    uint64_t want = (uint64_t)(q * (double)h->n), c = 0;
    if (!h->n) return 0;
    for (int i = 0; i < HB; i++) { c += h->b[i]; if (c > want) return (double)hval(i) / 1e3; }
    return (double)h->max / 1e3;
}

/* -------------------------------------------------------- connections -- */
enum role { ADMIN, PUB, CON };
struct conn {
    enum role role;
    int fd, idx, ep;
    uint32_t frame_max;
    uint8_t *rb; size_t rcap, rlen;       /* receive buffer                 */
    struct buf ob;                        /* control output (acks, flow-ok) */
    bool wblocked, armed;                 /* EAGAIN on write / EPOLLOUT set */
    /* publisher */
    uint8_t *batch; size_t stride, stamp_off, key_off; int bmax;
    size_t out_off, out_end;              /* bytes of the batch being sent  */
    uint64_t base, seq;                   /* sent before batch / next seq-1 */
    bool blocked, flow_off;               /* connection.blocked, channel.flow */
    uint8_t *cdone; uint64_t *cts; uint64_t cmask, clow, confirmed;
    uint64_t sched0;                      /* rate schedule origin           */
    double rate; uint64_t rate_sent;
    uint64_t sumseq, nacks, returns;
    /* consumer */
    uint64_t dtag, acked, cur_size, cur_got; bool in_content, sole;
    uint8_t stamp[STAMP]; uint8_t lastb;
    uint64_t *last;                       /* last sequence per publisher    */
    uint64_t con_sum;
    /* counters read by the main thread */
    _Atomic uint64_t n;                   /* published or consumed          */
    _Atomic uint64_t nconf;
    uint64_t order_err, gap, body_err, tag_err, redelivered, conf_err;
    struct hist *h;
};
static struct conn *pubs, *cons, admin;
static _Atomic int g_phase;               /* 0 run, 1 stop publishing, 2 exit */
static _Atomic int g_rec;                 /* 1 while in the steady window   */
static _Atomic int g_failed;
static char EX[256];
static uint64_t preloaded;                /* found in the queues by --reuse */
static inline uint64_t mix(unsigned pub, uint64_t seq) { return (seq + 1) * 0x9E3779B97F4A7C15ull ^ ((uint64_t)pub << 50); }

static void qname(char *out, int i) { snprintf(out, 200, "%s.q%d", O.prefix, i); }
static void rkey(char *out, int i) {
    if (O.keys) snprintf(out, 200, "load.%0*d.key", KEY_DIGITS, 0);
    else if (O.topic) snprintf(out, 200, "load.%d.key", i);
    else if (O.fanout) out[0] = 0;
    else qname(out, i);
}

/* ---- blocking part, used only for set-up -------------------------------- */
static void wr_all(int fd, struct buf *b) {
    for (size_t o = 0; o < b->len;) {
        ssize_t k = send(fd, b->p + o, b->len - o, MSG_NOSIGNAL);
        if (k < 0) { if (errno == EINTR) continue; die("send: %s", strerror(errno)); }
        o += k;
    }
    b->len = 0;
}
static void rd_all(int fd, uint8_t *p, size_t n) {
    while (n) {
        ssize_t k = recv(fd, p, n, 0);
        if (k == 0) die("broker closed the connection during set-up");
        if (k < 0) { if (errno == EINTR) continue; die("recv during set-up: %s", strerror(errno)); }
        p += k; n -= k;
    }
}
static void bad_close(const uint8_t *p, const char *what) {
    int n = p[6];
    die("%s by broker: %u %.*s", what, rd16(p + 4), n, (const char *)p + 7);
}
/* wait for a method frame; returns payload (static buffer) */
static uint8_t *expect(struct conn *c, int cls, int mth) {
    static uint8_t pl[1 << 20];
    for (;;) {
        uint8_t h[7];
        rd_all(c->fd, h, 7);
        uint32_t n = rd32(h + 3);
        if (h[0] == 'A') die("broker refused the protocol header");
        if (n + 1 > sizeof pl) die("oversized frame during set-up");
        rd_all(c->fd, pl, n + 1);
        if (pl[n] != FRAME_END) die("bad frame end during set-up");
        if (h[0] != 1) continue;                               /* heartbeat */
        int gc = rd16(pl), gm = rd16(pl + 2);
        if (gc == cls && gm == mth) return pl;
        if (gc == 10 && gm == 50) bad_close(pl, "connection closed");
        if (gc == 20 && gm == 40) bad_close(pl, "channel closed");
        if (gc == 10 && (gm == 60 || gm == 61)) continue;      /* (un)blocked */
        die("expected method %d.%d, got %d.%d", cls, mth, gc, gm);
    }
}
static void amqp_open(struct conn *c) {
    struct addrinfo hint = { .ai_socktype = SOCK_STREAM }, *ai;
    char port[16];
    snprintf(port, sizeof port, "%d", O.port);
    if (getaddrinfo(O.host, port, &hint, &ai)) die("cannot resolve %s", O.host);
    c->fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, ai->ai_addr, ai->ai_addrlen)) die("connect %s:%s: %s", O.host, port, strerror(errno));
    freeaddrinfo(ai);
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct timeval tv = { 15, 0 };
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);

    struct buf *b = &c->ob;
    praw(b, "AMQP\0\0\x09\x01", 8);
    wr_all(c->fd, b);
    expect(c, 10, 10);                                   /* connection.start */
    size_t o = mbegin(b, 0, 10, 11);
    struct buf t = {0}, caps = {0};
    static const char *capnames[] = { "publisher_confirms", "basic.nack", "consumer_cancel_notify", "connection.blocked", "authentication_failure_close" };
    for (int i = 0; i < 5; i++) { pshort(&caps, capnames[i]); p8(&caps, 't'); p8(&caps, 1); }
    pshort(&t, "product"); p8(&t, 'S'); plong(&t, "amqpload", 8);
    pshort(&t, "capabilities"); p8(&t, 'F'); plong(&t, caps.p, caps.len);
    plong(b, t.p, t.len);
    pshort(b, "PLAIN");
    char sasl[512]; int sl = 0;
    sasl[sl++] = 0; sl += sprintf(sasl + sl, "%s", O.user);
    sasl[sl++] = 0; sl += sprintf(sasl + sl, "%s", O.pass);
    plong(b, sasl, sl);
    pshort(b, "en_US");
    fend(b, o);
    free(t.p); free(caps.p);
    wr_all(c->fd, b);
    uint8_t *p = expect(c, 10, 30);                      /* connection.tune  */
    unsigned chmax = rd16(p + 4); uint32_t fmax = rd32(p + 6);
    if (fmax == 0 || fmax > 131072) fmax = 131072;
    c->frame_max = fmax;
    o = mbegin(b, 0, 10, 31); p16(b, chmax); p32(b, fmax); p16(b, 0); fend(b, o);
    o = mbegin(b, 0, 10, 40); pshort(b, O.vhost); pshort(b, ""); p8(b, 0); fend(b, o);
    wr_all(c->fd, b);
    expect(c, 10, 41);
    o = mbegin(b, 1, 20, 10); pshort(b, ""); fend(b, o);
    wr_all(c->fd, b);
    expect(c, 20, 11);
}
static void queue_declare(struct conn *c, const char *q, int passive, uint32_t *count) {
    struct buf *b = &c->ob, t = {0};
    size_t o = mbegin(b, 1, 50, 10);
    p16(b, 0); pshort(b, q); p8(b, (passive ? 1 : 0) | (O.durable ? 2 : 0));
    if (O.qtype && !passive) { pshort(&t, "x-queue-type"); p8(&t, 'S'); plong(&t, O.qtype, strlen(O.qtype)); }
    plong(b, t.p, t.len);
    fend(b, o);
    free(t.p);
    wr_all(c->fd, b);
    uint8_t *p = expect(c, 50, 11);
    if (count) *count = rd32(p + 5 + p[4]);
}
static void queue_delete(struct conn *c, const char *q) {
    struct buf *b = &c->ob;
    size_t o = mbegin(b, 1, 50, 40); p16(b, 0); pshort(b, q); p8(b, 0); fend(b, o);
    wr_all(c->fd, b);
    expect(c, 50, 41);
}
static void exchange_delete(struct conn *c, const char *x) {
    struct buf *b = &c->ob;
    size_t o = mbegin(b, 1, 40, 20); p16(b, 0); pshort(b, x); p8(b, 0); fend(b, o);
    wr_all(c->fd, b);
    expect(c, 40, 21);
}
static void topology(struct conn *c) {
    struct buf *b = &c->ob;
    char q[256], k[256];
    uint32_t n = 0;
    if (O.fanout || O.direct || O.topic) {
        snprintf(EX, sizeof EX, "%s.x", O.prefix);
        exchange_delete(c, EX);
        size_t o = mbegin(b, 1, 40, 10);
        p16(b, 0); pshort(b, EX); pshort(b, O.fanout ? "fanout" : O.topic ? "topic" : "direct");
        p8(b, O.durable ? 2 : 0); p32(b, 0); fend(b, o);
        wr_all(c->fd, b);
        expect(c, 40, 11);
    }
    for (int i = 0; i < O.queues; i++) {
        qname(q, i);
        if (!O.reuse) queue_delete(c, q);
        queue_declare(c, q, 0, &n);
        preloaded += n;
        if (EX[0]) {
            rkey(k, i);
            if (O.keys) snprintf(k, sizeof k, "load.#");
            else if (O.topic) snprintf(k, sizeof k, "load.%d.*", i);
            size_t o = mbegin(b, 1, 50, 20); p16(b, 0); pshort(b, q); pshort(b, EX); pshort(b, k); p8(b, 0); p32(b, 0); fend(b, o);
            wr_all(c->fd, b);
            expect(c, 50, 21);
        }
    }
}
/* pre-build the batch of publish frames */
static void build_batch(struct conn *c) {
    struct buf m = {0};
    char k[256];
    rkey(k, c->idx % O.queues);
    size_t o = mbegin(&m, 1, 60, 40);
    p16(&m, 0); pshort(&m, EX);
    c->key_off = m.len + 1 + 5;                      /* behind "load."       */
    pshort(&m, k); p8(&m, O.mandatory ? 1 : 0); fend(&m, o);
    o = fbegin(&m, 2, 1);
    p16(&m, 60); p16(&m, 0); p64(&m, O.body); p16(&m, 0x1000); p8(&m, O.persistent ? 2 : 1);
    fend(&m, o);
    c->stamp_off = m.len + 7;
    for (int left = O.body; left > 0;) {
        int n = left < (int)c->frame_max - 8 ? left : (int)c->frame_max - 8;
        o = fbegin(&m, 3, 1);
        need(&m, n); memset(m.p + m.len, 'x', n); m.len += n;
        fend(&m, o);
        left -= n;
    }
    c->stride = m.len;
    c->bmax = (int)(O.batch_bytes / m.len);
    if (c->bmax < 1) c->bmax = 1;
    c->batch = xmalloc(c->bmax * m.len);
    for (int i = 0; i < c->bmax; i++) memcpy(c->batch + i * m.len, m.p, m.len);
    free(m.p);
}
static void setup_conn(struct conn *c) {
    amqp_open(c);
    struct buf *b = &c->ob;
    size_t o;
    c->h = calloc(1, sizeof *c->h);
    if (c->role == PUB) {
        if (O.confirm) {
            o = mbegin(b, 1, 85, 10); p8(b, 0); fend(b, o);
            wr_all(c->fd, b);
            expect(c, 85, 11);
            uint64_t n = 1; while (n < (uint64_t)O.confirm + 1) n <<= 1;
            c->cmask = n - 1; c->cdone = calloc(n, 1); c->cts = calloc(n, 8);
        }
        c->clow = 1;
        build_batch(c);
        c->rate = O.rate / O.publishers;
        if (O.keys > 99999999) die("--keys has at most %d digits", KEY_DIGITS);
    } else {
        c->last = calloc(O.reuse ? MAXPUBS : O.publishers, 8);
        if (O.ack) {
            o = mbegin(b, 1, 60, 10); p32(b, 0); p16(b, O.ack); p8(b, 0); fend(b, o);
            wr_all(c->fd, b);
            expect(c, 60, 11);
        }
        char q[256];
        qname(q, c->idx % O.queues);
        c->sole = O.consumers <= O.queues;
        c->rcap = RBUF; c->rb = xmalloc(c->rcap);
        o = mbegin(b, 1, 60, 20);
        p16(b, 0); pshort(b, q); pshort(b, "c"); p8(b, O.ack ? 0 : 2); p32(b, 0); fend(b, o);
        wr_all(c->fd, b);
        expect(c, 60, 21);
    }
    if (!c->rb) { c->rcap = 65536; c->rb = xmalloc(c->rcap); }
    struct timeval tv = { 0, 0 };
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
}

/* ---- steady state, non-blocking ----------------------------------------- */
static void fail(struct conn *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "amqpload: %s %d: ", c->role == PUB ? "publisher" : "consumer", c->idx);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    g_failed = 1;
}
static void arm(struct conn *c, bool on) {
    if (c->armed == on) return;
    c->armed = on;
    struct epoll_event e = { .events = EPOLLIN | (on ? EPOLLOUT : 0), .data.ptr = c };
    epoll_ctl(c->ep, EPOLL_CTL_MOD, c->fd, &e);
}
/* returns false if the socket is full */
static bool raw_send(struct conn *c, const uint8_t *p, size_t *off, size_t end) {
    while (*off < end) {
        ssize_t k = send(c->fd, p + *off, end - *off, MSG_NOSIGNAL);
        if (k < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN) { c->wblocked = true; arm(c, true); return false; }
            fail(c, "send: %s", strerror(errno));
            c->wblocked = true;
            return false;
        }
        *off += k;
    }
    return true;
}
static void flush_ob(struct conn *c) {
    if (c->wblocked || c->out_off < c->out_end || !c->ob.len) return;
    if (raw_send(c, c->ob.p, &c->ob.off, c->ob.len)) c->ob.len = c->ob.off = 0;
}
static void put_ack(struct conn *c, uint64_t tag, int multiple) {
    static const uint8_t T[21] = { 1, 0, 1, 0, 0, 0, 13, 0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, FRAME_END };
    need(&c->ob, 21);
    uint8_t *p = c->ob.p + c->ob.len;
    memcpy(p, T, 21); wr64(p + 11, tag); p[19] = (uint8_t)multiple;
    c->ob.len += 21;
}
static void on_confirm(struct conn *c, uint64_t tag, int multiple, uint64_t t) {
    uint64_t sent_upto = c->base + c->out_off / c->stride;    /* fully sent */
    if (tag == 0 && multiple) tag = sent_upto;
    if (tag < c->clow || tag > sent_upto || !O.confirm) { c->conf_err++; return; }
    bool rec = g_rec;
    if (multiple) {
        for (uint64_t i = c->clow; i <= tag; i++)
            if (!c->cdone[i & c->cmask]) {
                c->cdone[i & c->cmask] = 1; c->confirmed++;
                if (O.latency && rec) hadd(c->h, t - c->cts[i & c->cmask]);
            }
    } else {
        if (c->cdone[tag & c->cmask]) { c->conf_err++; return; }
        c->cdone[tag & c->cmask] = 1; c->confirmed++;
        if (O.latency && rec) hadd(c->h, t - c->cts[tag & c->cmask]);
    }
    while (c->clow <= sent_upto && c->cdone[c->clow & c->cmask]) { c->cdone[c->clow & c->cmask] = 0; c->clow++; }
    atomic_store_explicit(&c->nconf, c->confirmed, memory_order_relaxed);
}
static void on_message(struct conn *c, uint64_t t, bool rec) {
    unsigned pub = rd16(c->stamp);
    uint64_t w = rd64(c->stamp), seq = w & 0xffffffffffffull;
    if (pub >= (unsigned)(O.reuse ? MAXPUBS : O.publishers)) { c->body_err++; return; }
    uint64_t l = c->last[pub];
    if (seq <= l) c->order_err++;
    else if (c->sole && seq != l + 1) c->gap++;
    c->last[pub] = seq;
    c->con_sum += mix(pub, seq);
    if (rec) { uint64_t ts = rd64(c->stamp + 8); hadd(c->h, t > ts ? t - ts : 0); }
}
/* parse everything in the receive buffer */
static void scan(struct conn *c, uint64_t t) {
    uint8_t *p = c->rb, *e = c->rb + c->rlen;
    uint64_t got = 0;
    const bool rec = O.latency && g_rec;
    while (e - p >= 8) {
        uint32_t n = rd32(p + 3);
        if ((size_t)(e - p) < (size_t)n + 8) {
            if ((size_t)n + 8 > c->rcap) {               /* grow for big frame */
                size_t keep = e - p;
                uint8_t *nb = xmalloc((size_t)n + 8 + RBUF);
                memcpy(nb, p, keep);
                free(c->rb);
                c->rb = nb; c->rcap = (size_t)n + 8 + RBUF; c->rlen = keep;
                goto out;
            }
            break;
        }
        uint8_t *m = p + 7;
        if (m[n] != FRAME_END) { fail(c, "bad frame end octet"); g_phase = 2; return; }
        if (p[0] == 3) {                                        /* body      */
            if (!c->in_content) { fail(c, "unexpected body frame"); g_phase = 2; return; }
            if (c->cur_got < STAMP) {
                size_t k = STAMP - c->cur_got; if (k > n) k = n;
                memcpy(c->stamp + c->cur_got, m, k);
            }
            c->cur_got += n;
            if (n) c->lastb = m[n - 1];
            if (c->cur_got >= c->cur_size) {
                c->in_content = false;
                if (c->cur_got != (uint64_t)O.body || (O.body > STAMP && c->lastb != 'x')) c->body_err++;
                on_message(c, t, rec);
                got++;
            }
        } else if (p[0] == 2) {                                 /* header    */
            c->cur_size = rd64(m + 4); c->cur_got = 0; c->in_content = true;
            if (c->cur_size == 0) { c->in_content = false; c->body_err++; got++; }
        } else if (p[0] == 1) {
            unsigned cls = rd16(m), mth = rd16(m + 2);
            if (cls == 60 && mth == 60) {                       /* deliver   */
                uint8_t *d = m + 5 + m[4];
                if (rd64(d) != c->dtag + 1) c->tag_err++;
                c->dtag = rd64(d);
                c->redelivered += d[8] & 1;
                if (O.ack_single) put_ack(c, c->dtag, 0);
            } else if (cls == 60 && mth == 80) on_confirm(c, rd64(m + 4), m[12] & 1, t);
            else if (cls == 60 && mth == 120) { c->nacks++; on_confirm(c, rd64(m + 4), m[12] & 1, t); }
            else if (cls == 60 && mth == 50) { c->returns++; c->in_content = false; }
            else if (cls == 10 && mth == 60) c->blocked = true;
            else if (cls == 10 && mth == 61) c->blocked = false;
            else if (cls == 20 && mth == 20) {                  /* channel.flow */
                c->flow_off = !(m[4] & 1);
                size_t o = mbegin(&c->ob, 1, 20, 21); p8(&c->ob, m[4] & 1); fend(&c->ob, o);
            } else if (cls == 60 && mth == 30) { fail(c, "consumer cancelled by broker"); g_phase = 2; return; }
            else if ((cls == 10 && mth == 50) || (cls == 20 && mth == 40)) {
                fail(c, "%s closed by broker: %u %.*s", cls == 10 ? "connection" : "channel", rd16(m + 4), m[6], (char *)m + 7);
                g_phase = 2; return;
            } else { fail(c, "unexpected method %u.%u", cls, mth); }
        } else if (p[0] != 8) { fail(c, "bad frame type %u", p[0]); g_phase = 2; return; }
        p += (size_t)n + 8;
    }
    c->rlen = e - p;
    if (c->rlen) memmove(c->rb, p, c->rlen);
out:
    if (c->role == CON && got) {
        atomic_store_explicit(&c->n, c->n + got, memory_order_relaxed);
        if (O.ack && !O.ack_single) {
            uint64_t full = c->in_content ? c->dtag - 1 : c->dtag;   /* only complete ones */
            /* emulate a client which acks every N messages with multiple=true */
            while (full - c->acked >= (uint64_t)O.ack_every) { c->acked += O.ack_every; put_ack(c, c->acked, 1); }
        }
    }
}
static void on_readable(struct conn *c) {
    for (int i = 0; i < 4; i++) {
        size_t room = c->rcap - c->rlen;
        ssize_t k = recv(c->fd, c->rb + c->rlen, room, 0);
        if (k < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN) { fail(c, "recv: %s", strerror(errno)); g_phase = 2; }
            break;
        }
        if (k == 0) { if (g_phase < 2) fail(c, "connection lost"); g_phase = 2; epoll_ctl(c->ep, EPOLL_CTL_DEL, c->fd, NULL); return; }
        c->rlen += k;
        scan(c, now_ns());
        if ((size_t)k < room) break;
    }
    if (c->role == CON && O.ack && !O.ack_single && g_phase == 1 && c->dtag > c->acked && !c->in_content) {
        put_ack(c, c->dtag, 1); c->acked = c->dtag;
    }
    flush_ob(c);
}
static inline void wr_key(uint8_t *p, uint64_t v) {   /* KEY_DIGITS decimal digits */
    for (int i = KEY_DIGITS - 1; i >= 0; i--) { p[i] = (uint8_t)('0' + v % 10); v /= 10; }
}
static uint64_t total(struct conn *a, int n) {
    uint64_t s = 0;
    for (int i = 0; i < n; i++) s += atomic_load_explicit(&a[i].n, memory_order_relaxed);
    return s;
}
/* Push messages of one publisher. Returns ns to wait until it is worth calling
 * again: 0 = immediately, UINT64_MAX = only after an event. */
static uint64_t pump(struct conn *c) {
    if (c->wblocked) return UINT64_MAX;
    size_t budget = 4 * (size_t)O.batch_bytes;
    const int fan = O.fanout ? O.queues : 1;
    for (;;) {
        if (c->out_off < c->out_end) {
            size_t b4 = c->out_off;
            bool ok = raw_send(c, c->batch, &c->out_off, c->out_end);
            atomic_store_explicit(&c->n, c->base + c->out_off / c->stride, memory_order_relaxed);
            size_t sent = c->out_off - b4;
            budget = sent > budget ? 0 : budget - sent;
            if (!ok) return UINT64_MAX;
            c->base += c->out_end / c->stride;
            c->out_off = c->out_end = 0;
        }
        flush_ob(c);
        if (c->wblocked || g_phase) return UINT64_MAX;
        if (c->blocked || c->flow_off) return UINT64_MAX;
        if (!budget) return 0;
        uint64_t n = c->bmax, t = now_ns();
        if (c->rate > 0) {
            uint64_t due = (uint64_t)((double)(t - c->sched0) * c->rate / 1e9);
            if (due <= c->rate_sent) return (uint64_t)((double)(c->rate_sent + 1) / c->rate * 1e9) - (t - c->sched0) + 500;
            if (n > due - c->rate_sent) n = due - c->rate_sent;
        }
        if (O.count) {
            uint64_t quota = (uint64_t)O.count / O.publishers;
            if (c->seq >= quota) return UINT64_MAX;
            if (n > quota - c->seq) n = quota - c->seq;
        }
        if (O.confirm) {
            /* clow..seq may not exceed the window (also bounds the bitmap) */
            uint64_t out = c->seq + 1 - c->clow;
            if (out >= (uint64_t)O.confirm) return UINT64_MAX;
            if (n > O.confirm - out) n = O.confirm - out;
        }
        if (O.inflight && O.consumers) {
            uint64_t p = total(pubs, O.publishers), q = total(cons, O.consumers) / fan;
            long room = O.inflight - (long)(p - q);
            if (room <= 0) return 200000;
            if ((long)n > room) n = room;
        }
        for (uint64_t i = 0; i < n; i++) {
            uint8_t *s = c->batch + i * c->stride + c->stamp_off;
            uint64_t seq = ++c->seq, ts = t;
            /* rate limited: stamp the INTENDED send time (no coordinated omission) */
            if (c->rate > 0) ts = c->sched0 + (uint64_t)((double)(c->rate_sent + i + 1) / c->rate * 1e9);
            wr64(s, ((uint64_t)c->idx << 48) | seq);
            wr64(s + 8, ts);
            if (O.keys) wr_key(c->batch + i * c->stride + c->key_off, (seq - 1) % (uint64_t)O.keys);
            c->sumseq += mix(c->idx, seq);
            if (O.confirm) { c->cts[seq & c->cmask] = ts; c->cdone[seq & c->cmask] = 0; }
        }
        c->rate_sent += n;
        c->out_off = 0; c->out_end = n * c->stride;
    }
}

struct worker { pthread_t th; int id, ep; };
static void *worker(void *arg) {
    struct worker *w = arg;
    struct epoll_event ev[256];
    uint64_t t0 = now_ns();
    prctl(PR_SET_TIMERSLACK, 1000);          /* 1 us: precise pacing */
    for (int i = w->id; i < O.publishers; i += O.threads) pubs[i].sched0 = t0;
    int last_phase = 0;
    while (g_phase < 2) {
        uint64_t wait = 50000000;
        for (int i = w->id; i < O.publishers; i += O.threads) {
            uint64_t k = pump(&pubs[i]);
            if (k < wait) wait = k;
        }
        if (g_phase != last_phase) {                 /* entering the drain    */
            last_phase = g_phase;
            for (int j = 0; j < O.consumers; j++) if ((O.publishers + j) % O.threads == w->id) on_readable(&cons[j]);
        }
        struct timespec ts = { (time_t)(wait / 1000000000ull), (long)(wait % 1000000000ull) };
        int n = epoll_pwait2(w->ep, ev, 256, &ts, NULL);
        if (n < 0 && errno != EINTR) die("epoll_pwait2: %s", strerror(errno));
        for (int i = 0; i < n; i++) {
            struct conn *c = ev[i].data.ptr;
            if (ev[i].events & EPOLLOUT) { c->wblocked = false; arm(c, false); flush_ob(c); }
            if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(c);
        }
    }
    return NULL;
}
static double proc_cpu(void) {                   /* utime+stime of --pid list */
    double s = 0;
    for (int i = 0; i < O.npids; i++) {
        char fn[64], b[1024];
        snprintf(fn, sizeof fn, "/proc/%d/stat", O.pids[i]);
        FILE *f = fopen(fn, "r");
        if (!f) continue;
        size_t k = fread(b, 1, sizeof b - 1, f);
        fclose(f);
        b[k] = 0;
        char *p = strrchr(b, ')');
        unsigned long u = 0, v = 0;
        if (p) sscanf(p + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &u, &v);
        s += (double)(u + v) / (double)sysconf(_SC_CLK_TCK);
    }
    return s;
}
static double self_cpu(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}
static void sleep_s(double s) {
    uint64_t end = now_ns() + (uint64_t)(s * 1e9);
    while (now_ns() < end && g_phase < 2) usleep(5000);
}
static uint64_t total_conf(void) {
    uint64_t s = 0;
    for (int i = 0; i < O.publishers; i++) s += atomic_load_explicit(&pubs[i].nconf, memory_order_relaxed);
    return s;
}
/* --count, --reuse: until all is published (and confirmed), or all that was there is consumed */
static void await_work(void) {
    uint64_t quota = O.publishers ? (uint64_t)O.count / O.publishers * O.publishers : 0, prog = 0, tp = now_ns();
    while (g_phase < 2) {
        uint64_t p = total(pubs, O.publishers), c = total(cons, O.consumers), f = total_conf();
        if (p >= quota && (!O.confirm || f >= quota) && (!O.reuse || !O.consumers || c >= preloaded)) return;
        if (p + c + f != prog) { prog = p + c + f; tp = now_ns(); }
        if ((double)(now_ns() - tp) / 1e9 > O.drain) { fprintf(stderr, "amqpload: no progress for %.0f s: pub=%lu con=%lu conf=%lu\n", O.drain, p, c, f); return; }
        usleep(1000);
    }
}
static void usage(void) {
    puts("amqpload [--host H] [--port N] [--user U] [--password P] [--vhost V] [--prefix S]\n"
         "  --publishers P --consumers C --queues Q    connections / queues (pub i,con i -> queue i%Q)\n"
         "  --body N           body bytes, >= 16\n"
         "  --persistent       delivery-mode 2      --durable   durable queues/exchange\n"
         "  --queue-type T     x-queue-type argument (quorum, ...)\n"
         "  --confirm W        confirms, at most W unconfirmed per publisher\n"
         "  --ack P            manual ack, prefetch P (default auto-ack)\n"
         "  --ack-every N      multiple ack every N (default prefetch/4)   --ack-single  ack each\n"
         "  --fanout           fanout exchange, one queue per consumer\n"
         "  --direct | --topic bind queues to a named direct/topic exchange\n"
         "  --keys N           topic exchange, binding load.#, publishers cycle over N distinct keys\n"
         "  --mandatory        set the mandatory bit\n"
         "  --count N          publish N messages in all, as fast as possible, then end\n"
         "  --reuse            keep what the queues hold: with --publishers 0, measures the drain of it\n"
         "  --seconds S --warmup S --drain S           steady window, warm-up, drain timeout\n"
         "  --rate R           total publish rate limit, 0 = max\n"
         "  --inflight N       closed loop: at most N published-but-unconsumed, 0 = off\n"
         "  --latency          p50/p99/p99.9 end-to-end (and confirm latency)\n"
         "  --pid PID          broker pid (repeatable): CPU s per 1M messages\n"
         "  --threads T --batch-bytes N --name S --json --keep");
    exit(1);
}
int main(int argc, char **argv) {
    static const struct option L[] = {
        {"host",1,0,'h'},{"port",1,0,'p'},{"user",1,0,1},{"password",1,0,2},{"vhost",1,0,3},{"prefix",1,0,4},
        {"publishers",1,0,'P'},{"consumers",1,0,'C'},{"queues",1,0,'Q'},{"body",1,0,'b'},{"persistent",0,0,5},
        {"durable",0,0,6},{"queue-type",1,0,7},{"confirm",1,0,'w'},{"ack",1,0,'a'},{"ack-every",1,0,8},
        {"ack-single",0,0,9},{"fanout",0,0,'f'},{"direct",0,0,10},{"topic",0,0,11},{"mandatory",0,0,12},
        {"seconds",1,0,'s'},{"warmup",1,0,13},{"drain",1,0,14},{"rate",1,0,'r'},{"inflight",1,0,15},
        {"latency",0,0,'l'},{"pid",1,0,16},{"threads",1,0,'t'},{"batch-bytes",1,0,17},{"name",1,0,18},
        {"json",0,0,'j'},{"keep",0,0,19},{"keys",1,0,20},{"count",1,0,21},{"reuse",0,0,22},{"help",0,0,'?'},{0,0,0,0} };
    int k;
    while ((k = getopt_long(argc, argv, "h:p:P:C:Q:b:w:a:fs:r:lt:j", L, NULL)) != -1) switch (k) {
        case 'h': O.host = optarg; break;          case 'p': O.port = atoi(optarg); break;
        case 1: O.user = optarg; break;            case 2: O.pass = optarg; break;
        case 3: O.vhost = optarg; break;           case 4: O.prefix = optarg; break;
        case 'P': O.publishers = atoi(optarg); break; case 'C': O.consumers = atoi(optarg); break;
        case 'Q': O.queues = atoi(optarg); break;  case 'b': O.body = atoi(optarg); break;
        case 5: O.persistent = 1; break;           case 6: O.durable = 1; break;
        case 7: O.qtype = optarg; break;           case 'w': O.confirm = atoi(optarg); break;
        case 'a': O.ack = atoi(optarg); break;     case 8: O.ack_every = atoi(optarg); break;
        case 9: O.ack_single = 1; break;           case 'f': O.fanout = 1; break;
        case 10: O.direct = 1; break;              case 11: O.topic = 1; break;
        case 12: O.mandatory = 1; break;           case 's': O.seconds = atof(optarg); break;
        case 13: O.warmup = atof(optarg); break;   case 14: O.drain = atof(optarg); break;
        case 'r': O.rate = atof(optarg); break;    case 15: O.inflight = atol(optarg); break;
        case 'l': O.latency = 1; break;
        case 16: if (O.npids < MAXPIDS) O.pids[O.npids++] = atoi(optarg); break;
        case 't': O.threads = atoi(optarg); break; case 17: O.batch_bytes = atoi(optarg); break;
        case 18: O.name = optarg; break;           case 'j': O.json = 1; break;
        case 19: O.keep = 1; break;                case 20: O.keys = atoi(optarg); O.topic = 1; break;
        case 21: O.count = atol(optarg); break;    case 22: O.reuse = 1; break;
        default: usage();
    }
    if (O.body < STAMP) die("--body must be >= %d", STAMP);
    if (O.publishers < 0 || O.publishers > MAXPUBS || O.consumers < 0 || O.queues < 1 || O.threads < 1) usage();
    if (O.confirm < 0 || O.ack < 0 || O.ack > 65535) usage();
    if (O.count && O.publishers < 1) die("--count needs a publisher");
    if (O.reuse && (O.fanout || O.direct || O.topic)) die("--reuse is for the default exchange");
    if (O.count || O.reuse) O.warmup = 0;
    if (O.fanout) O.queues = O.consumers ? O.consumers : O.queues;
    if (O.ack && !O.ack_every) O.ack_every = O.ack / 4 ? O.ack / 4 : 1;
    if (O.ack && O.ack_every > O.ack) O.ack_every = O.ack;
    signal(SIGPIPE, SIG_IGN);

    amqp_open(&admin);
    topology(&admin);
    pubs = calloc(O.publishers + 1, sizeof *pubs);
    cons = calloc(O.consumers + 1, sizeof *cons);
    for (int i = 0; i < O.consumers; i++) { cons[i].role = CON; cons[i].idx = i; setup_conn(&cons[i]); }
    for (int i = 0; i < O.publishers; i++) { pubs[i].role = PUB; pubs[i].idx = i; setup_conn(&pubs[i]); }
    struct worker *W = calloc(O.threads, sizeof *W);
    for (int i = 0; i < O.threads; i++) { W[i].id = i; W[i].ep = epoll_create1(EPOLL_CLOEXEC); }
    for (int i = 0; i < O.publishers + O.consumers; i++) {
        struct conn *c = i < O.publishers ? &pubs[i] : &cons[i - O.publishers];
        c->ep = W[i % O.threads].ep;
        struct epoll_event e = { .events = EPOLLIN, .data.ptr = c };
        epoll_ctl(c->ep, EPOLL_CTL_ADD, c->fd, &e);
    }
    for (int i = 0; i < O.threads; i++) pthread_create(&W[i].th, NULL, worker, &W[i]);

    /* ---- warm-up, then the steady window ---- */
    sleep_s(O.warmup);
    uint64_t p0 = total(pubs, O.publishers), c0 = total(cons, O.consumers), f0 = total_conf(), t0 = now_ns();
    double b0 = proc_cpu(), g0 = self_cpu();
    g_rec = 1;
    if (O.count || O.reuse) await_work();
    else sleep_s(O.seconds);
    g_rec = 0;
    uint64_t p1 = total(pubs, O.publishers), c1 = total(cons, O.consumers), f1 = total_conf(), t1 = now_ns();
    double b1 = proc_cpu(), g1 = self_cpu();
    double dt = (double)(t1 - t0) / 1e9;

    /* ---- drain ---- */
    if (g_phase < 1) g_phase = 1;
    int fan = O.fanout ? O.queues : 1;
    uint64_t prog = 0, tp = now_ns();
    while (g_phase < 2) {
        uint64_t p = total(pubs, O.publishers), c = total(cons, O.consumers), f = total_conf();
        bool partial = false;
        for (int i = 0; i < O.publishers; i++) if (pubs[i].out_off < pubs[i].out_end) partial = true;
        if (!partial && (!O.consumers || c >= p * fan + preloaded) && (!O.confirm || f >= p)) break;
        if (p + c + f != prog) { prog = p + c + f; tp = now_ns(); }
        if ((double)(now_ns() - tp) / 1e9 > O.drain) { fprintf(stderr, "amqpload: drain timeout pub=%lu con=%lu conf=%lu\n", p, c, f); break; }
        usleep(2000);
    }
    usleep(20000);                                   /* let final acks go out */
    if (g_phase < 2) g_phase = 2;
    for (int i = 0; i < O.threads; i++) pthread_join(W[i].th, NULL);
    uint64_t P = total(pubs, O.publishers), C = total(cons, O.consumers), F = total_conf();

    /* final acks: blocking, so the queue can be seen empty */
    for (int i = 0; i < O.consumers; i++) if (O.ack && !O.ack_single && !g_failed && cons[i].dtag > cons[i].acked && !cons[i].ob.len) {
        put_ack(&cons[i], cons[i].dtag, 1); cons[i].acked = cons[i].dtag;
        wr_all(cons[i].fd, &cons[i].ob);
    }
    uint64_t left = 0;
    bool healthy = !g_failed;
    if (healthy) {
        usleep(50000);
        for (int i = 0; i < O.queues; i++) { char q[256]; uint32_t n = 0; qname(q, i); queue_declare(&admin, q, 1, &n); left += n; }
        if (!O.keep) {
            for (int i = 0; i < O.queues; i++) { char q[256]; qname(q, i); queue_delete(&admin, q); }
            if (EX[0]) exchange_delete(&admin, EX);
        }
    }
    uint64_t sp = 0, sc = 0, ord = 0, gap = 0, be = 0, te = 0, rd = 0, ce = 0, nk = 0, rt = 0;
    struct hist *H = calloc(1, sizeof *H), *HC = calloc(1, sizeof *HC);
    for (int i = 0; i < O.publishers; i++) { sp += pubs[i].sumseq; ce += pubs[i].conf_err; nk += pubs[i].nacks; rt += pubs[i].returns; hmerge(HC, pubs[i].h); }
    for (int i = 0; i < O.consumers; i++) {
        struct conn *c = &cons[i];
        sc += c->con_sum; ord += c->order_err; gap += c->gap; be += c->body_err; te += c->tag_err; rd += c->redelivered; hmerge(H, c->h);
    }
    bool ok = healthy && !ord && !gap && !be && !te && !ce && !nk && !rt;
    if (O.consumers && O.reuse) ok = ok && C == P * (uint64_t)fan + preloaded && left == 0;
    else if (O.consumers) ok = ok && C == P * (uint64_t)fan && sc == sp * (uint64_t)fan && left == 0;
    if (O.count) ok = ok && P == (uint64_t)O.count / O.publishers * O.publishers;
    if (O.confirm) ok = ok && F == P;
    double pr = (double)(p1 - p0) / dt, cr = (double)(c1 - c0) / dt;
    double dp = (double)(p1 - p0) / 1e6, dc = (double)(c1 - c0) / 1e6;
    if (!O.json)
        fprintf(stderr, "%s pub %.0f/s con %.0f/s ok=%d\n", O.name, pr, cr, ok);
    printf("{\"name\":\"%s\",\"port\":%d,\"publishers\":%d,\"consumers\":%d,\"queues\":%d,\"body\":%d,\"persistent\":%d,\"durable\":%d,"
           "\"queue_type\":\"%s\",\"confirm\":%d,\"ack\":%d,\"ack_every\":%d,\"fanout\":%d,\"rate\":%.0f,\"inflight\":%ld,\"seconds\":%.3f,"
           "\"pub_s\":%.0f,\"con_s\":%.0f,\"conf_s\":%.0f,\"published\":%lu,\"consumed\":%lu,\"confirmed\":%lu,"
           "\"order_err\":%lu,\"gaps\":%lu,\"body_err\":%lu,\"tag_err\":%lu,\"confirm_err\":%lu,\"nacks\":%lu,\"returns\":%lu,\"redelivered\":%lu,"
           "\"left\":%lu,\"checksum_ok\":%s,\"gen_cpu\":%.2f",
           O.name, O.port, O.publishers, O.consumers, O.queues, O.body, O.persistent, O.durable, O.qtype ? O.qtype : "",
           O.confirm, O.ack, O.ack_single ? -1 : O.ack_every, O.fanout, O.rate, O.inflight, dt, pr, cr, (double)(f1 - f0) / dt,
           P, C, F, ord, gap, be, te, ce, nk, rt, rd, left, sc == sp * (uint64_t)fan || !O.consumers || O.reuse ? "true" : "false", (g1 - g0) / dt);
    if (O.npids)
        printf(",\"broker_cpu\":%.2f,\"cpu_s_per_1m_pub\":%.3f,\"cpu_s_per_1m_con\":%.3f", (b1 - b0) / dt, dp > 0 ? (b1 - b0) / dp : 0, dc > 0 ? (b1 - b0) / dc : 0);
    if (O.latency) {
        printf(",\"lat_us\":{\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f,\"n\":%lu}", hpct(H, .5), hpct(H, .9), hpct(H, .99), hpct(H, .999), (double)H->max / 1e3, H->n);
        if (O.confirm) printf(",\"confirm_us\":{\"p50\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f}", hpct(HC, .5), hpct(HC, .99), hpct(HC, .999), (double)HC->max / 1e3);
    }
    printf(",\"ok\":%s}\n", ok ? "true" : "false");
    return ok ? 0 : 3;
}
