/* Members of JSON rows: left out, renamed, masked. */

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
#include "put.h"

/* The first 32 bits of the fractions of the cube roots of the first 64 primes (FIPS 180-4). */
static const uint32_t sha_rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline uint32_t turned(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

#define ROUND(a, b, c, d, e, f, g, h, number)                                                                                \
    h += (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + sha_rounds[number] + w[number];             \
    d += h;                                                                                                                  \
    h += (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))

static void sha_block(uint32_t *state, const uint8_t *block) {
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t early = turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t late = turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + early + w[i - 7] + late;
    }
    for (int i = 0; i < 64; i += 8) {
        ROUND(a, b, c, d, e, f, g, h, i);
        ROUND(h, a, b, c, d, e, f, g, i + 1);
        ROUND(g, h, a, b, c, d, e, f, i + 2);
        ROUND(f, g, h, a, b, c, d, e, i + 3);
        ROUND(e, f, g, h, a, b, c, d, i + 4);
        ROUND(d, e, f, g, h, a, b, c, i + 5);
        ROUND(c, d, e, f, g, h, a, b, i + 6);
        ROUND(b, c, d, e, f, g, h, a, i + 7);
    }
    const uint32_t more[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++) state[i] += more[i];
}

/* The same with the processor's own instructions, five times as fast. A register has the words A, B, E and F, another one C, D,
   G and H, the first of them highest; an instruction does two rounds. */
#if defined(__x86_64__) && !defined(PLAIN_SHA)
__attribute__((target("sha,sse4.1"))) static void sha_block_at_once(uint32_t *state, const uint8_t *block) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    const __m128i first = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
    const __m128i second = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
    __m128i abef = first, cdgh = second, w[4];
    uint32_t sums[8];
    for (int i = 0; i < 16; i++) {
        if (i < 4) {
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(block + 16 * i)), swap);
        } else {
            __m128i before = w[(i + 3) & 3], between = _mm_alignr_epi8(before, w[(i + 2) & 3], 4);
            __m128i early = _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]);
            w[i & 3] = _mm_sha256msg2_epu32(_mm_add_epi32(early, between), before);
        }
        __m128i words = _mm_add_epi32(w[i & 3], _mm_loadu_si128((const __m128i *)(sha_rounds + 4 * i)));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0E));
    }
    _mm_storeu_si128((__m128i *)sums, _mm_add_epi32(abef, first));
    _mm_storeu_si128((__m128i *)(sums + 4), _mm_add_epi32(cdgh, second));
    state[0] = sums[3], state[1] = sums[2], state[4] = sums[1], state[5] = sums[0];
    state[2] = sums[7], state[3] = sums[6], state[6] = sums[5], state[7] = sums[4];
}

static int has_sha(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c >> 19 & 1 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1;
}
#else
#define sha_block_at_once sha_block
static int has_sha(void) { return 0; }
#endif

static int at_once = -1; /* not asked yet */

/* Write the SHA-256 of bytes in hex. Behind the bytes there is room for 128 more. */
static uint8_t *put_sha256(uint8_t *to, uint8_t *bytes, int64_t size) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    int64_t padded = (size + 8) / 64 * 64 + 64;
    memset(bytes + size, 0, (size_t)(padded - size));
    bytes[size] = 0x80;
    for (int i = 0; i < 8; i++) bytes[padded - 1 - i] = (uint8_t)((uint64_t)size * 8 >> (8 * i));
    for (int64_t block = 0; block < padded; block += 64)
        if (at_once)
            sha_block_at_once(state, bytes + block);
        else
            sha_block(state, bytes + block);
    for (int i = 0; i < 64; i++) *to++ = (uint8_t)"0123456789abcdef"[state[i / 8] >> (28 - i % 8 * 4) & 15];
    return to;
}

/* Write the text of a rule and a value's SHA-256; the value lies from `p` to `end`. NULL for a lone surrogate. */
static uint8_t *put_hash(uint8_t *to, Place p, Place end, const Bounds *b, const Rule *rule) {
    uint8_t *bytes = to + 128, *behind; /* over which the result is not written */
    memcpy(bytes, rule->text, (size_t)rule->text_size);
    behind = bytes + rule->text_size;
    behind = *p == '"' ? unescape(behind, p + 1, end - 1, b->last) : copy(behind, p, end - p, b->last);
    if (!behind) return NULL;
    *to++ = '"';
    to = put_sha256(to, bytes, behind - bytes);
    *to++ = '"';
    return to;
}

/* Write the first characters of a text, or of a value that is none; NULL for an object, an array and a lone surrogate. */
static uint8_t *put_cut(uint8_t *to, Place p, Place end, const Bounds *b, int64_t most) {
    Place start = p;
    if (*p == '{' || *p == '[') return NULL;
    if (*p == '"') {
        start = ++p;
        end--;
    }
    for (; p < end && most > 0; most--) {
        if (*p == '\\' && p[1] == 'u') {
            int32_t code = hex4(p + 2, end);
            p += 6;
            if (code < 0xD800 || code >= 0xE000) continue;
            if (code >= 0xDC00 || end - p < 6 || p[0] != '\\' || p[1] != 'u') return NULL;
            code = hex4(p + 2, end);
            if (code < 0xDC00 || code >= 0xE000) return NULL;
            p += 6;
        } else if (*p == '\\') {
            p += 2;
        } else {
            for (p++; p < end && (*p & 0xC0) == 0x80; p++) {}
        }
    }
    *to++ = '"';
    to = copy(to, start, p - start, b->last);
    *to++ = '"';
    return to;
}

/* The rule for a name, looked for from number `expected` on; NULL without one. */
static inline const Rule *rule_of(const Plan *plan, int64_t *expected, Place name, int64_t size) {
    const Rule *rules = plan->members;
    for (int64_t i = 0; i < plan->count; i++) {
        int64_t number = *expected + i < plan->count ? *expected + i : *expected + i - plan->count;
        if (rules[number].name_size == size && !memcmp(rules[number].name, name, (size_t)size)) {
            *expected = number + 1 < plan->count ? number + 1 : 0;
            return &rules[number];
        }
    }
    return NULL;
}

/* Whether no rule drops or renames one of the names in a list of them. */
static int are_plain_names(Place p, const Bounds *b, const Plan *plan) {
    int64_t expected = 0;
    if (at(p, b) != '[') return 0;
    p = skip_spaces(p + 1, b);
    while (at(p, b) == '"') {
        int escaped = 0;
        Place end = end_of_string(p + 1, b, &escaped);
        if (!end || escaped) return 0;
        const Rule *rule = rule_of(plan, &expected, p + 1, end - p - 1);
        if (rule && (rule->to_size || rule->kind == RULE_DROP || rule->kind == RULE_ODD)) return 0;
        p = skip_spaces(end + 1, b);
        if (at(p, b) == ',') p = skip_spaces(p + 1, b);
    }
    return at(p, b) == ']';
}

/* Write a value as its rule says; NULL outside of the subset. */
static uint8_t *put_ruled(uint8_t *to, Place p, Place end, const Bounds *b, const Rule *rule) {
    if (*p == 'n' || rule->kind == RULE_KEEP || rule->kind == RULE_NAMES) return copy(to, p, end - p, b->last);
    if (rule->kind == RULE_HASH) return put_hash(to, p, end, b, rule);
    if (rule->kind == RULE_CUT) return put_cut(to, p, end, b, rule->number);
    memcpy(to, rule->text, (size_t)rule->text_size);
    return to + rule->text_size;
}

/* A PutRow for plans of Rules: members without one are copied together. */
static uint8_t *put_by_rules(uint8_t *to, const uint8_t *most, Place p, const Bounds *b, const Plan *plan, int *full) {
    Place run, run_end = NULL; /* members that are copied together with the next one */
    int64_t expected = 0;
    int empty = 1;
    p = skip_spaces(p, b);
    if (at(p, b) != '{') return NULL;
    *full = most - to < b->end - p + ROOM_A_VALUE;
    if (*full) return NULL;
    *to++ = '{';
    run = p = skip_spaces(p + 1, b);
    for (int first = 1; at(p, b) != '}'; first = 0) {
        int escaped = 0;
        Place start, name, name_end, value;
        if (!first) {
            if (at(p, b) != ',') return NULL;
            p = skip_spaces(p + 1, b);
        }
        start = p;
        value = p = skip_name(p, b, &name, &name_end, &escaped);
        if (!p || escaped) return NULL;
        const Rule *rule = rule_of(plan, &expected, name, name_end - name);
        if (rule && (rule->kind == RULE_ODD || (rule->kind == RULE_NAMES && !are_plain_names(p, b, plan)))) return NULL;
        p = skip_value(p, b);
        if (!p) return NULL;
        if (!rule && plan->only_named) {
            /* left out */
        } else if (!rule) {
            if (!run_end) run = start;
            run_end = p;
        } else {
            int64_t size = (run_end ? run_end - run : 0) + rule->to_size + rule->text_size + 2 * (p - start);
            *full = most - to < size + ROOM_A_VALUE;
            if (*full) return NULL;
            if (run_end) {
                if (!empty) *to++ = ',';
                to = copy(to, run, run_end - run, b->last);
                run_end = NULL;
                empty = 0;
            }
            if (rule->kind != RULE_DROP) {
                if (!empty) *to++ = ',';
                if (rule->to_size) {
                    memcpy(to, rule->to, (size_t)rule->to_size);
                    to += rule->to_size;
                } else {
                    to = copy(to, start, value - start, b->last);
                }
                to = put_ruled(to, value, p, b, rule);
                if (!to) return NULL;
                empty = 0;
            }
        }
        p = skip_spaces(p, b);
    }
    if (skip_spaces(p + 1, b) != b->end) return NULL;
    *full = most - to < (run_end ? run_end - run : 0) + SLACK;
    if (*full) return NULL;
    if (run_end) {
        if (!empty) *to++ = ',';
        to = copy(to, run, run_end - run, b->last);
    }
    *to++ = '}';
    return to;
}

/* Rewrite rows by plans of Rules (`rewrite`). */
int64_t txn_sink_apply_rules(const void *bounds, int32_t wide, const uint8_t *data, const Plan *plans, const int32_t *chosen,
                             int64_t rows, uint8_t *to, int64_t room, int64_t *used, int32_t *ends, int64_t row) {
    if (at_once < 0) at_once = has_sha();
    return rewrite(put_by_rules, bounds, wide, data, plans, chosen, rows, to, room, used, ends, row);
}
