/* JSON rows read once, for all that a lane wants to know of them: whether a row is surely one object, whether its names are
   new, and whether its table keeps its values as they are. Rows with other values are rewritten. */

#include "values.h"

#define MOST_COLUMNS 1024 /* of a table whose rows are judged here: as many bytes on the stack */
#define MOST_FILLER 256   /* of a DEFAULT that is written here: ROOM_A_VALUE has more */
#define COUNTED 12        /* digits of a filler that count, of which a UUID has as many behind its last dash */
#define PATTERNS 64       /* of so many tables at a time, half of them for deletes */
#define PIECES 128        /* a row of more members has no pattern */

#define OWN_OP "__op"
#define DELETING "{\"" OWN_OP "\":1" /* begins a delete (rows/columns.py) */
#define UNCHANGED "__starrocks_txn_sink_unchanged" /* names columns that a row leaves out for good (rows/columns.py) */

/* What is found in a row; ODD is all of it, for one that is no JSON object. */
enum { DOUBTFUL = 1 << ROW_DOUBTFUL, NEW = 1 << ROW_NEW, MISFIT = 1 << ROW_MISFIT, ODD = DOUBTFUL | NEW | MISFIT };

/* Names. */

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

static inline int is_text(Place p, int64_t size, const char *text) {
    return size == (int64_t)strlen(text) && !memcmp(p, text, (size_t)size);
}

/* Other members than those with a column, as MALFORMED and the like. */
enum { OWN = MALFORMED - 2, LEAVING_OUT };

/* The text of a row from the end of one value to the next value: a comma, a name and a colon. `shape` is the hash of the names
   so far. */
typedef struct {
    uint64_t shape;
    uint32_t start;
    uint16_t size;
    int16_t column;
} Piece;

/* The texts between the values of a table's last row, which most rows share: such a row has the same names. `found` says what
   follows from the names alone. */
typedef struct {
    int64_t rows;
    int64_t count;
    int found;
    Piece pieces[PIECES];
} Pattern;

static inline int has_piece(Place p, const Bounds *b, Place other, int64_t size) {
    if (b->end - p <= size) return 0;
#if defined(__SSE2__)
    if (p <= b->last) { /* so is `other`, which is of an earlier row */
        __m128i block = _mm_loadu_si128((const __m128i *)p), others = _mm_loadu_si128((const __m128i *)other);
        unsigned differences = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(block, others)) ^ 0xFFFF;
        if (size < 16) return !(differences & ((1u << size) - 1));
        return !differences && !memcmp(p + 16, other + 16, (size_t)size - 16);
    }
#endif
    return !memcmp(p, other, (size_t)size);
}

/* What a row has not, and what it has too often. */
typedef struct {
    int64_t needed;
    int twice, escaped, leaving_out;
    uint8_t seen[MOST_COLUMNS];
} Names;

static inline void note(Names *names, const ColumnRule *rules, int64_t column) {
    if (column >= 0) {
        names->twice |= names->seen[column];
        names->seen[column] = 1;
        names->needed += rules[column].needed & 1;
    } else {
        names->escaped |= column == ESCAPED;
        names->leaving_out |= column == LEAVING_OUT;
    }
}

/* Make the filler that of the next row. A text ends with a quote. */
static void count_up(const ColumnRule *rule) {
    char *digit = rule->filler + rule->filler_size - 1, last = rule->base == 16 ? 'f' : '9';
    if (*digit == '"') digit--;
    for (int n = 0; n < COUNTED; n++, digit--) {
        int full = *digit == last;
        *digit = full ? '0' : *digit == '9' ? 'a' : (char)(*digit + 1);
        if (!full) return;
    }
}

static inline int lacks(const ColumnRule *rule, uint8_t seen) { return !seen && rule->needed & 1; }

/* Put what a row has not `seen` behind its brace, where `front` is in the output; 0 where Python says what is missing. */
static int put_fillers(uint8_t *front, const Plan *table, const uint8_t *seen, int empty, Output *output) {
    const ColumnRule *rules = table->members;
    int64_t size = 0;
    for (int64_t n = 0; n < table->count; n++) {
        if (!lacks(&rules[n], seen[n])) continue;
        if (!rules[n].filler || rules[n].filler_size > MOST_FILLER) return 0;
        size += rules[n].filler_size + 1;
    }
    output->changed = 1;
    if (!output->to) return 1;
    memmove(front + size - empty, front, (size_t)(output->to - front));
    output->to += size - empty;
    for (int64_t n = 0; n < table->count; n++) {
        if (!lacks(&rules[n], seen[n])) continue;
        size -= rules[n].filler_size + 1;
        memcpy(front, rules[n].filler, (size_t)rules[n].filler_size);
        front += rules[n].filler_size;
        if (rules[n].base) count_up(&rules[n]);
        if (size || !empty) *front++ = ',';
    }
    return 1;
}

/* Whether a delete has its key. */
static int has_key(const Plan *table, const uint8_t *seen) {
    const ColumnRule *rules = table->members;
    for (int64_t n = 0; n < table->count; n++)
        if (!seen[n] && rules[n].needed & 2) return 0;
    return 1;
}

/* Whether a row, which is JSON, has half of a pair of surrogates: a backslash is always inside a string there. */
static int has_lone_surrogate(Place p, Place end) {
    while ((p = memchr(p, '\\', (size_t)(end - p)))) {
        if (p[1] != 'u') {
            p += 2;
            continue;
        }
        int32_t code = hex4(p + 2, end);
        p += 6;
        if (code < 0xD800 || code > 0xDFFF) continue;
        if (code > 0xDBFF || end - p < 6 || p[0] != '\\' || p[1] != 'u') return 1;
        code = hex4(p + 2, end);
        if (code < 0xDC00 || code > 0xDFFF) return 1;
        p += 6;
    }
    return 0;
}

/* Rows. */

/* A row: `start` is behind its separator. `begun` is the hash of its table's name; `deletes`: it begins as a delete, and
   `deleted`: by the sink's own OWN_OP. Patterns have places behind `base`. */
typedef struct {
    Place start, base;
    const Bounds *b;
    const Plan *table;
    int deletes, deleted;
    uint64_t begun;
    Output *output;
} Row;

static inline int starts_as_delete(Place p, const Bounds *b) {
    int64_t size = (int64_t)strlen(DELETING);
    return b->end - p > size && !memcmp(p, DELETING, (size_t)size);
}

/* The end of a member's value, which is written unless the row is judged alone; NULL if it is no JSON. `*found` gets what it
   says of the row. */
static inline Place read_value(const Row *row, Place value, int64_t column, int *found) {
    Output *output = row->output;
    if (column >= 0) {
        Place end = fit_value(value, row->b, &((const ColumnRule *)row->table->members)[column], output);
        if (end && (output->to || !output->changed)) return end;
        output->changed = 0;
        *found |= MISFIT;
        return end ? end : skip_value(value, row->b);
    }
    Place end = skip_value(value, row->b);
    if (column == OWN) {
        Place own = row->start + strlen(DELETING);
        if (!row->deleted || value != own - 1 || end != own) *found |= DOUBTFUL;
    }
    if (end) keep(value, end, row->b, output);
    return end;
}

/* Add the text from `start` to `end` to a pattern; 0 for one without room. */
static inline int add_piece(Pattern *pattern, int64_t n, Place base, Place start, Place end, int64_t column, uint64_t shape) {
    if (n == PIECES || end - start > UINT16_MAX || end - base > UINT32_MAX) return 0;
    pattern->pieces[n] = (Piece){shape, (uint32_t)(start - base), (uint16_t)(end - start), (int16_t)column};
    return 1;
}

/* What the names of a whole row say; `front` is where fillers go in the output. */
static int judge_names(const Row *row, const Names *names, uint8_t *front, int empty) {
    const Plan *table = row->table;
    int found = names->escaped ? DOUBTFUL | MISFIT : 0;
    if (names->twice) return found | MISFIT;
    if (row->deletes) return has_key(table, names->seen) ? found : found | MISFIT;
    if (names->needed == table->only_named) return found;
    int filled = row->output->to && !names->leaving_out && put_fillers(front, table, names->seen, empty, row->output);
    return filled ? found : found | MISFIT;
}

/* Read the members of a row from number `n` on. `p` is behind the value in front of it, or where the row begins. `pattern`
   becomes the row's, unless it is NULL, and has its first `n` texts. `*shape` becomes the hash of its names. A row that is
   written ends where Python judges it. */
static int read_members(const Row *row, Pattern *pattern, Place p, int64_t n, uint64_t *shape) {
    const Bounds *b = row->b;
    const ColumnRule *rules = row->table->members;
    const int64_t columns = row->table->count;
    Output *output = row->output;
    Names names;
    uint8_t *front = output->to;
    int64_t next = 0;
    int found = 0, empty = 0, recorded = pattern != NULL;
    names.needed = names.twice = names.escaped = names.leaving_out = 0;
    memset(names.seen, 0, (size_t)columns);
    for (int64_t piece = 0; piece < n; piece++) {
        int64_t column = pattern->pieces[piece].column;
        note(&names, rules, column);
        if (column >= 0) next = column + 1;
    }
    *shape = n ? pattern->pieces[n - 1].shape : row->begun;
    if (pattern) pattern->count = 0; /* for a part of the row there is none */
    for (;; n++) {
        Place behind = p;
        p = skip_spaces(p, b);
        if (n && at(p, b) == '}') {
            keep(behind, p, b, output);
            break;
        }
        if (at(p, b) != (n ? ',' : '{')) return ODD;
        if (!n && front) front += p + 1 - behind;
        p = skip_spaces(p + 1, b);
        empty = !n && at(p, b) == '}';
        if (empty) {
            keep(behind, p, b, output);
            break;
        }
        Place name = p + 1;
        int64_t size, column = column_at(&p, b, rules, columns, next, &size);
        if (column == MALFORMED) return ODD;
        if (column >= 0) next = column + 1;
        if (column == OTHER && is_text(name, size, OWN_OP)) column = OWN;
        if (column == OTHER && is_text(name, size, UNCHANGED)) column = LEAVING_OUT;
        note(&names, rules, column);
        *shape = mix(*shape, name, size);
        recorded = recorded && add_piece(pattern, n, row->base, behind, p, column, *shape);
        if (output->to && (names.twice || names.escaped)) return ODD;
        keep(behind, p, b, output);
        p = read_value(row, p, column, &found);
        if (!p || (output->to && found & MISFIT)) return ODD;
    }
    p = keep(p, skip_spaces(p + 1, b), b, output);
    if (p != b->end) return ODD;
    int of_names = judge_names(row, &names, front, empty);
    if (recorded) {
        pattern->count = n;
        pattern->found = of_names;
    }
    return found | of_names;
}

/* What there is to say of a row that is judged alone. `seen` as in txn_sink_find. */
static int judge_row(const Row *row, Pattern *pattern, uint64_t *seen, int64_t mask, int64_t *used) {
    const Bounds *b = row->b;
    Place p = row->start;
    int64_t n = 0;
    int found = 0;
    uint64_t shape;
    for (const Piece *piece = pattern->pieces; n < pattern->count; n++, piece++) {
        if (!has_piece(p, b, row->base + piece->start, piece->size) || p[piece->size] <= ' ') break; /* or more blanks */
        p = read_value(row, p + piece->size, piece->column, &found);
        if (!p) return ODD;
    }
    if (n && n == pattern->count && b->end - p == 1 && *p == '}') {
        found |= pattern->found;
    } else {
        found |= read_members(row, pattern, p, n, &shape);
        if (seen && !(found & NEW) && is_new(shape | 1, seen, mask, used)) found |= NEW;
    }
    if (!(found & DOUBTFUL) && has_lone_surrogate(row->start, b->end)) found |= DOUBTFUL;
    return found;
}

/* Find the rows that are to be looked at, by each RowKind: writes the numbers of those of kind k to `found` from k * rows on, and
   how many there are to `counts`. A new shape is a row's table and its names in their order and spelling.

   Texts lie between `bounds` as in txn_sink_read. `deleted` has a byte a row, NULL: none is deleted. `tables` has the number of
   each row's table, NULL: it is 0. `plans` has the columns of tables, NULL, or none: values are not judged. `shapes` has a hash
   of each table, NULL: no shape is new. `seen` are the shapes that were met, a hash table of `mask` + 1 places. `*used` are in
   use, at most half of them: beyond that no further one is remembered. */
void txn_sink_find(const void *bounds, int32_t wide, const uint8_t *data, const uint8_t *deleted, const int32_t *tables,
                   const Plan *plans, const uint64_t *shapes, uint64_t *seen, int64_t mask, int64_t *used, int64_t rows,
                   int32_t *found, int64_t *counts) {
    static const Plan unjudged = {NULL, 0, 0};
    const Place base = data + bound(bounds, wide, 0), last = data + bound(bounds, wide, rows) - 16;
    Pattern patterns[PATTERNS];
    for (int64_t n = 0; n < PATTERNS; n++) patterns[n].rows = -1;
    for (int64_t number = 0; number < rows; number++) {
        Bounds b = {data + bound(bounds, wide, number + 1), last};
        Place start = data + bound(bounds, wide, number);
        Output output = {NULL, 0};
        int64_t table = tables ? tables[number] : 0;
        const Plan *plan = plans && table >= 0 ? &plans[table] : &unjudged;
        int known = plan->count && plan->count <= MOST_COLUMNS, flags = DOUBTFUL | MISFIT;
        if (at(start, &b) == SEPARATOR) {
            int deletes = starts_as_delete(skip_spaces(start + 1, &b), &b);
            uint64_t begun = shapes ? shapes[table] : 0;
            Row row = {start + 1, base, &b, known ? plan : &unjudged, deletes, deleted && deleted[number], begun, &output};
            Pattern *pattern = &patterns[(2 * table + deletes) & (PATTERNS - 1)];
            if (pattern->rows != 2 * table + deletes) pattern->count = 0;
            pattern->rows = 2 * table + deletes;
            flags = judge_row(&row, pattern, shapes ? seen : NULL, mask, used) | (known ? 0 : MISFIT);
        }
        if (!shapes) flags &= ~NEW;
        if (!plan->count) flags &= ~MISFIT;
        for (int kind = ROW_DOUBTFUL; flags; kind++, flags >>= 1)
            if (flags & 1) found[kind * rows + counts[kind]++] = (int32_t)number;
    }
}

static uint8_t *put_fitted(uint8_t *to, const uint8_t *most, Place p, const Bounds *b, const Plan *table, int *full) {
    Output output = {to, 0};
    uint64_t shape;
    /* Each byte of a document gets one more at most, and each other value ROOM_A_VALUE. */
    *full = most - to < 2 * (b->end - p) + (table->count + 1) * ROOM_A_VALUE;
    if (*full || at(p, b) != SEPARATOR || table->count > MOST_COLUMNS) return NULL;
    keep(p, p + 1, b, &output);
    int deletes = starts_as_delete(skip_spaces(p + 1, b), b);
    Row row = {p + 1, p, b, table, deletes, 0, 0, &output};
    return read_members(&row, NULL, p + 1, 0, &shape) & MISFIT ? NULL : output.to;
}

/* Rewrite rows as their columns keep them (`rewrite`). */
int64_t txn_sink_fit(const void *bounds, int32_t wide, const uint8_t *data, const Plan *plans, const int32_t *chosen,
                     int64_t rows, uint8_t *to, int64_t room, int64_t *used, int32_t *ends, int64_t row) {
    return rewrite(put_fitted, bounds, wide, data, plans, chosen, rows, to, room, used, ends, row);
}
