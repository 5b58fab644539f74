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

/* The first place in the `size` bytes where one of the texts is, each of which has two bytes at least; -1 without one. */
int64_t txn_sink_search(const uint8_t *data, int64_t size, const Text *texts, int64_t count) {
    int64_t p = 0;
    for (; p < size; p++) {
#if defined(__SSE2__)
        /* Blocks in which no two bytes begin a text. */
        for (; p + 17 <= size; p += 16) {
            __m128i first = _mm_loadu_si128((const __m128i *)(data + p)), found = _mm_setzero_si128();
            __m128i second = _mm_loadu_si128((const __m128i *)(data + p + 1));
            for (int64_t n = 0; n < count; n++)
                found = _mm_or_si128(found, _mm_and_si128(_mm_cmpeq_epi8(first, _mm_set1_epi8(texts[n].text[0])),
                                                          _mm_cmpeq_epi8(second, _mm_set1_epi8(texts[n].text[1]))));
            int mask = _mm_movemask_epi8(found);
            if (mask) {
                p += __builtin_ctz((unsigned)mask);
                break;
            }
        }
        if (p >= size) break;
#endif
        for (int64_t n = 0; n < count; n++)
            if (texts[n].text_size <= size - p && !memcmp(data + p, texts[n].text, (size_t)texts[n].text_size)) return p;
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
