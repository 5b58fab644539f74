/* Messages of Avro, behind a schema's number of a registry, as JSON (sources/formats/avro.py). */

#include "writer.h"

static inline int avro_number(Writer *a, int64_t *number) {
    uint64_t bits = 0;
    for (int shift = 0; a->p < a->end; shift += 7) {
        uint8_t byte = *a->p++;
        if (shift == 63 && byte > 1) return 0;
        bits |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *number = (int64_t)(bits >> 1 ^ (0 - (bits & 1)));
            return 1;
        }
        if (shift == 63) return 0;
    }
    return 0;
}

/* The number of bytes that follow, which are there. */
static inline int avro_size(Writer *a, int64_t *size) { return avro_number(a, size) && *size >= 0 && *size <= a->end - a->p; }

static int put_avro(Writer *a, const AvroType *type, int depth);

/* The items of an array or a map, which come in blocks. */
static int put_items(Writer *a, const AvroType *type, int depth) {
    int map = type->kind == AVRO_MAP;
    int64_t count, size, written = 0;
    if (!put_raw(a, map ? "{" : "[", 1)) return 0;
    for (;;) {
        if (!avro_number(a, &count)) return 0;
        if (!count) return put_raw(a, map ? "}" : "]", 1);
        if (count < 0 && (count == INT64_MIN || !avro_number(a, &size))) return 0;
        if (count < 0) count = -count;
        for (; count; count--) {
            if (written++ && !put_raw(a, ",", 1)) return 0;
            if (map) {
                if (!avro_size(a, &size) || !put_json_string(a, a->p, size) || !put_raw(a, ":", 1)) return 0;
                a->p += size;
            }
            if (!put_avro(a, &a->types[type->first], depth)) return 0;
        }
    }
}

/* Write one value; 0 outside of the subset, or without room. */
static int put_avro(Writer *a, const AvroType *type, int depth) {
    int64_t number;
    if (depth > DEEPEST) return 0;
    switch (type->kind) {
    case AVRO_NULL: return put_raw(a, "null", 4);
    case AVRO_BOOLEAN:
        if (a->p >= a->end || *a->p > 1) return 0;
        return *a->p++ ? put_raw(a, "true", 4) : put_raw(a, "false", 5);
    case AVRO_LONG: return avro_number(a, &number) && put_whole(a, number);
    case AVRO_FLOAT: {
        float real;
        if (a->end - a->p < 4) return 0;
        memcpy(&real, a->p, 4);
        a->p += 4;
        return put_real(a, real, 6, 9, 1);
    }
    case AVRO_DOUBLE: {
        double real;
        if (a->end - a->p < 8) return 0;
        memcpy(&real, a->p, 8);
        a->p += 8;
        return put_real(a, real, 15, 17, 0);
    }
    case AVRO_BYTES: case AVRO_FIXED: case AVRO_STRING: {
        int64_t size = type->count;
        if (type->kind == AVRO_FIXED ? size > a->end - a->p : !avro_size(a, &size)) return 0;
        Place start = a->p;
        a->p += size;
        return type->kind == AVRO_STRING ? put_json_string(a, start, size) : put_base64(a, start, size);
    }
    case AVRO_ENUM:
        if (!avro_number(a, &number) || number < 0 || number >= type->count) return 0;
        return put_raw(a, a->types[type->first + number].text, a->types[type->first + number].text_size);
    case AVRO_UNION:
        if (!avro_number(a, &number) || number < 0 || number >= type->count) return 0;
        return put_avro(a, &a->types[type->first + number], depth + 1);
    case AVRO_ARRAY: case AVRO_MAP: return put_items(a, type, depth + 1);
    default: { /* a record */
        if (!put_raw(a, "{", 1)) return 0;
        for (int64_t i = 0; i < type->count; i++) {
            const AvroType *field = &a->types[type->first + i];
            if ((i && !put_raw(a, ",", 1)) || !put_raw(a, field->text, field->text_size)) return 0;
            if (!put_avro(a, field, depth + 1)) return 0;
        }
        return put_raw(a, "}", 1);
    }
    }
}

/* Write the messages from `row` on as JSON, each by its schema (`chosen`); an empty text with -1. The terms are those of
   txn_sink_convert. */
int64_t txn_sink_avro(const void *bounds, int32_t wide, const uint8_t *data, const MessageSchema *schemas, const int32_t *chosen,
                      int64_t rows, uint8_t *to, int64_t room, int64_t *used, int32_t *ends, int64_t row) {
    for (; row < rows; row++) {
        int64_t start = bound(bounds, wide, row), end = bound(bounds, wide, row + 1);
        if (chosen[row] >= 0) {
            const MessageSchema *schema = &schemas[chosen[row]];
            Writer a = {data + start + schema->header, data + end, to + *used, to + room, schema->parts, 0};
            int there = end - start >= schema->header && put_raw(&a, schema->before, schema->before_size);
            if (there) bound_json(&a, end - start);
            there = there && put_avro(&a, schema->parts, 0) && a.p == a.end && (!schema->before_size || put_raw(&a, "}", 1));
            if (a.full && a.most == to + room) return -1 - row;
            if (!there) return row;
            *used = a.to - to;
        }
        ends[row + 1] = (int32_t)*used;
    }
    return rows;
}
