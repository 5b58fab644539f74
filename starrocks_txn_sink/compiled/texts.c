/* Whole columns of texts: bring them together, look for a text, take numbers out of them. */

#include "json.h"

#define AHEAD 8 /* texts that are fetched while others are copied: they lie anywhere */

/* The piece with text `number`; `near` is that of the text before. */
static inline const Texts *piece_of(const Texts *pieces, int64_t count, const Texts *near, int64_t number) {
    if (near->first <= number && (near == pieces + count - 1 || number < near[1].first)) return near;
    int64_t low = 0, high = count - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (pieces[middle].first <= number)
            low = middle;
        else
            high = middle - 1;
    }
    return pieces + low;
}

/* Find the texts `numbers` of the pieces: `from` gets where each begins, `ends` (room for rows + 1) where each ends behind
   one another, and `valid`, which is zero, the bits of those that are not NULL. Returns their bytes, -1 for 2 GiB. */
int64_t txn_sink_find_texts(const Texts *pieces, int64_t count, const int64_t *numbers, int64_t rows, const uint8_t **from,
                            int32_t *ends, uint8_t *valid, int64_t *nulls) {
    const Texts *piece = pieces;
    int64_t size = 0;
    *nulls = 0;
    ends[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        piece = piece_of(pieces, count, piece, numbers[row]);
        int64_t n = numbers[row] - piece->first, bit = piece->bit + n;
        int64_t start = bound(piece->bounds, (int32_t)piece->wide, n);
        from[row] = piece->data + start;
        if (piece->valid && !(piece->valid[bit >> 3] >> (bit & 7) & 1)) {
            ++*nulls;
        } else {
            valid[row >> 3] |= (uint8_t)(1u << (row & 7));
            size += bound(piece->bounds, (int32_t)piece->wide, n + 1) - start;
        }
        if (size > INT32_MAX) return -1;
        ends[row + 1] = (int32_t)size;
    }
    return size;
}

/* Copy the texts that were found behind one another. */
void txn_sink_copy_texts(const uint8_t *const *from, const int32_t *ends, int64_t rows, uint8_t *to) {
    for (int64_t row = 0; row < rows; row++) {
#if defined(__GNUC__)
        if (row + AHEAD < rows) {
            Place next = from[row + AHEAD];
            int64_t size = ends[row + AHEAD + 1] - ends[row + AHEAD];
            for (int64_t i = 0; i < size && i < 256; i += 64) __builtin_prefetch(next + i);
        }
#endif
        memcpy(to + ends[row], from[row], (size_t)(ends[row + 1] - ends[row]));
    }
}

#define PAIRS 65536

static inline size_t pair(Place at) { return (size_t)at[0] << 8 | at[1]; }

/* The first place in the `size` bytes where one of the texts is, each of which has two bytes at least; -1 without one.
   The last two bytes of a window that is as long as the shortest text say how far it may move on (Wu and Manber). */
int64_t txn_sink_search(const uint8_t *data, int64_t size, const Text *texts, int64_t count) {
    uint8_t moves[PAIRS];
    int64_t width = UINT8_MAX;
    for (int64_t n = 0; n < count; n++)
        if (texts[n].text_size < width) width = texts[n].text_size;
    memset(moves, (int)width - 1, sizeof moves);
    for (int64_t n = 0; n < count; n++)
        for (int64_t i = 0; i + 2 <= width; i++) {
            uint8_t *move = moves + pair((Place)texts[n].text + i), most = (uint8_t)(width - 2 - i);
            if (most < *move) *move = most;
        }
    for (int64_t p = 0; p + width <= size;) {
        uint8_t move = moves[pair(data + p + width - 2)];
        p += move;
        if (move) continue;
        for (int64_t n = 0; n < count; n++)
            if (texts[n].text_size <= size - p && !memcmp(data + p, texts[n].text, (size_t)texts[n].text_size)) return p;
        p++;
    }
    return -1;
}

/* Take the texts apart, each of which is empty or two numbers with a colon between: `to` gets the digits of the first one,
   `ends` (room for rows + 1) where they end, and `second` (may be NULL) the second one. Returns how many are empty, -1 for
   another text, and for a second number of more than 64 bits. */
int64_t txn_sink_pairs(const void *bounds, int32_t wide, const uint8_t *data, int64_t rows, int32_t *ends, uint8_t *to,
                       int64_t *second) {
    int64_t empty = 0, used = 0;
    ends[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        Place start = data + bound(bounds, wide, row), end = data + bound(bounds, wide, row + 1), p = start;
        while (p < end && is_digit(*p)) to[used++] = *p++;
        ends[row + 1] = (int32_t)used;
        if (start == end) {
            empty++;
            continue;
        }
        if (p == start || end - p < 2 || *p != ':') return -1;
        Place digits = ++p;
        while (p < end && is_digit(*p)) p++;
        if (p < end || (second && !whole_number(digits, end, second + row))) return -1;
    }
    return empty;
}
