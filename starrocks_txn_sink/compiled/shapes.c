/* The names that JSON rows have, found by the shapes of their texts. */

#include "json.h"

/* The names in JSON rows. */

#define PATTERNS 64 /* of so many tables at a time */
#define PIECES 128 /* a row of more members has no pattern */
#define QUOTES (4 * PIECES + 64)

static inline uint64_t mix(uint64_t shape, Place p, int64_t size) {
    uint64_t word;
    shape = (shape ^ (uint64_t)size) * 0x9E3779B97F4A7C15u;
    for (; size >= 8; size -= 8, p += 8) {
        memcpy(&word, p, 8);
        shape = (shape ^ word) * 0xD6E8FEB86659FD93u;
        shape ^= shape >> 32;
    }
    word = 0;
    if (size >= 4) { /* all bytes, some of them twice */
        uint32_t first, last;
        memcpy(&first, p, 4);
        memcpy(&last, p + size - 4, 4);
        word = (uint64_t)first << 32 | last;
    } else if (size) {
        word = (uint64_t)p[0] << 16 | (uint64_t)p[size / 2] << 8 | p[size - 1];
    }
    shape = (shape ^ word) * 0xD6E8FEB86659FD93u;
    return shape ^ shape >> 32;
}

/* The text between two values of a row, with a name in it: its place and size in the row, and how far in the name's quote is. */
typedef struct {
    uint32_t start, mask;
    uint16_t size, name;
} Piece;

/* The texts of one row in front of its values: `count` of them, 0 for too many. A row with the same texts has the same names,
   and this is quicker to find out than its shape. */
typedef struct {
    uint64_t table;
    Place row;
    int64_t count;
    Piece pieces[PIECES];
} Pattern;

static inline int add_piece(Pattern *pattern, Place start, Place name, Place end) {
    if (pattern->count == PIECES || end - start > UINT16_MAX || end - pattern->row > UINT32_MAX) return 0;
    uint32_t mask = end - start < 16 ? (1u << (end - start)) - 1 : 0xFFFF;
    pattern->pieces[pattern->count++] = (Piece){(uint32_t)(start - pattern->row), mask, (uint16_t)(end - start), (uint16_t)(name - start)};
    return 1;
}

static inline int is_same(Place p, Place other, const Piece *piece) {
#if defined(__SSE2__)
    __m128i block = _mm_loadu_si128((const __m128i *)p), others = _mm_loadu_si128((const __m128i *)other);
    if (~(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(block, others)) & piece->mask) return 0;
    if (piece->size <= 16) return 1;
#endif
    return !memcmp(p, other, piece->size);
}

/* A bit for each quote among 64 bytes, the first one lowest. */
static inline uint64_t quotes_among(Place p, int *escapes) {
    uint64_t quotes = 0;
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\');
    __m128i escaping = _mm_setzero_si128();
    for (int i = 0; i < 64; i += 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)(p + i));
        quotes |= (uint64_t)(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(block, quote)) << i;
        escaping = _mm_or_si128(escaping, _mm_cmpeq_epi8(block, backslash));
    }
    *escapes = _mm_movemask_epi8(escaping);
#else
    *escapes = 0;
    for (int i = 0; i < 64; i++) {
        quotes |= (uint64_t)(p[i] == '"') << i;
        *escapes |= p[i] == '\\';
    }
#endif
    return quotes;
}

/* A bit for each of 64 bytes that is escaped; `*first` says whether the first one is, and then the first one behind them. */
static uint64_t escaped_among(Place p, uint64_t *first) {
    uint64_t escaped = *first;
    for (int i = 0; i < 63; i++)
        if (p[i] == '\\' && !(escaped >> i & 1)) escaped |= (uint64_t)2 << i;
    *first = p[63] == '\\' && !(escaped >> 63);
    return escaped;
}

/* Write where the row has quotes that are not escaped; returns how many, -1 if that is not quickly seen. */
static int64_t find_quotes(Place row, const Bounds *b, uint32_t *places) {
    int64_t size = b->end - row, count = 0;
    uint64_t escaped = 0;
    if (size > UINT32_MAX || ((size + 63) & ~(int64_t)63) > b->last - row) return -1;
    for (int64_t offset = 0; offset < size; offset += 64) {
        int escapes;
        uint64_t quotes = quotes_among(row + offset, &escapes);
        if (escapes | (int)escaped) quotes &= ~escaped_among(row + offset, &escaped);
        if (size - offset < 64) quotes &= ((uint64_t)1 << (size - offset)) - 1;
        if (count > QUOTES - 64) return -1;
        for (; quotes; quotes &= quotes - 1) places[count++] = (uint32_t)offset + (uint32_t)__builtin_ctzll(quotes);
    }
    return count;
}

/* Whether the row has the pattern's texts, each with the row's next quote outside of values. Values are not judged: if one is
   malformed, so is the row, and the server rejects it. */
static int has_pattern(Place row, const Bounds *b, const Pattern *pattern) {
    uint32_t quotes[QUOTES];
    int64_t count = find_quotes(row, b, quotes), next = 0, size = b->end - row;
    for (const Piece *piece = pattern->pieces; piece < pattern->pieces + pattern->count; piece++) {
        if (next >= count) return 0;
        int64_t start = (int64_t)quotes[next] - piece->name, value = start + piece->size;
        if (start < 0 || value >= size || !is_same(row + start, pattern->row + piece->start, piece)) return 0;
        uint8_t first = row[value];
        next += first == '"' ? 4 : 2;
        if ((first | 0x20) == '{') { /* or a bracket: it may have quotes, too */
            Place end = skip_value(row + value, b);
            if (!end) return 0;
            while (next < count && quotes[next] < end - row) next++;
        }
    }
    return count && next == count;
}

/* The hash of a row's names in their order, continued from `shape`; 0 for a row that is not one plain object. `*pattern`
   becomes the row's. */
static uint64_t shape_of(Place p, const Bounds *b, uint64_t shape, Pattern *pattern) {
    int simple = 1;
    Place piece = p;
    pattern->row = p;
    pattern->count = 0;
    p = skip_spaces(p, b);
    if (at(p, b) != '{') return 0;
    p = skip_spaces(p + 1, b);
    if (at(p, b) != '}') {
        for (;;) {
            int escaped = 0;
            Place name, name_end;
            p = skip_name(p, b, &name, &name_end, &escaped);
            if (!p || p >= b->end) return 0;
            shape = mix(shape, name, name_end - name);
            simple = simple && add_piece(pattern, piece, name - 1, p);
            piece = p = skip_value(p, b);
            if (!p) return 0;
            p = skip_spaces(p, b);
            if (at(p, b) == '}') break;
            if (at(p, b) != ',') return 0;
            p = skip_spaces(p + 1, b);
        }
    }
    if (skip_spaces(p + 1, b) != b->end) return 0;
    if (!simple) pattern->count = 0;
    return shape | 1;
}

/* Whether `shape` is new; a new one goes into `seen`, a hash table of `mask` + 1 places that is filled to one half. */
static int is_new(uint64_t shape, uint64_t *seen, int64_t mask, int64_t *used) {
    int64_t place = (int64_t)(shape >> 1) & mask;
    for (; seen[place]; place = (place + 1) & mask)
        if (seen[place] == shape) return 0;
    if (*used <= mask / 2) {
        seen[place] = shape;
        ++*used;
    }
    return 1;
}

/* Write the numbers of the JSON rows with a new shape (their table and their names) to `found`, and of each row that is
   not one plain object; returns how many there are. Texts lie between `bounds` as in txn_sink_read. */
int64_t txn_sink_new_shapes(const void *bounds, int32_t wide, const uint8_t *data, const void *table_bounds,
                            int32_t table_wide, const uint8_t *tables, int64_t rows, uint64_t *seen, int64_t mask,
                            int64_t *used, int64_t *found) {
    int64_t count = 0;
    Place last = data + bound(bounds, wide, rows) - 16;
    Pattern patterns[PATTERNS];
    for (int64_t n = 0; n < PATTERNS; n++) patterns[n].table = (uint64_t)(patterns[n].count = 0);
    for (int64_t row = 0; row < rows; row++) {
        Place start = data + bound(bounds, wide, row);
        Bounds b = {data + bound(bounds, wide, row + 1), last};
        if (at(start, &b) != SEPARATOR) continue;
        int64_t name = bound(table_bounds, table_wide, row);
        uint64_t table = mix(0, tables + name, bound(table_bounds, table_wide, row + 1) - name);
        Pattern *pattern = &patterns[table % PATTERNS];
        if (pattern->table == table && has_pattern(start + 1, &b, pattern)) continue;
        uint64_t shape = shape_of(start + 1, &b, table, pattern);
        pattern->table = table;
        if (!shape) pattern->count = 0; /* of a part of the row */
        if (!shape || is_new(shape, seen, mask, used)) found[count++] = row;
    }
    return count;
}
