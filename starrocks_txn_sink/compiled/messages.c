/* Messages of Kafka as Arrow columns. */

#include "json.h"

typedef void (*Destroy)(Message *);
typedef int64_t (*Timestamp)(const Message *, int32_t *);
typedef int32_t (*Headers)(const Message *, const void **);
typedef int32_t (*Header)(const void *, size_t, const char **, const void **, size_t *);

#define NO_ENTRY (-156) /* RD_KAFKA_RESP_ERR__NOENT */

static inline void append_bytes(Binary *column, int64_t row, const uint8_t *from, size_t size) {
    int32_t start = column->ends[row];
    if (from) {
        memcpy(column->data + start, from, size);
        column->valid[row >> 3] |= (uint8_t)(1u << (row & 7));
    } else {
        size = 0;
        column->nulls++;
    }
    column->ends[row + 1] = start + (int32_t)size;
}

/* Move the errors among the messages behind the rows, each in their order, with the help of `spare`, which has room for
   `count`; returns how many rows there are, and the bytes of their values and keys. */
int64_t txn_sink_messages(Message **messages, int64_t count, Message **spare, int64_t *values, int64_t *keys) {
    int64_t rows = 0, errors = 0;
    *values = *keys = 0;
    for (int64_t i = 0; i < count; i++) {
        Message *each = messages[i];
        if (each->error) {
            spare[errors++] = each;
            continue;
        }
        messages[rows++] = each;
        *values += each->value ? (int64_t)each->value_size : 0;
        *keys += each->key ? (int64_t)each->key_size : 0;
    }
    memcpy(messages + rows, spare, (size_t)errors * sizeof(Message *));
    return rows;
}

/* The rows as columns. `topics` has the address of each one's topic, `times` are in milliseconds since the Unix epoch;
   `keys` may be NULL. */
void txn_sink_take(Message **messages, int64_t rows, Timestamp timestamp, int64_t *topics, int64_t *partitions,
                   int64_t *offsets, int64_t *times, Binary *values, Binary *keys) {
    int32_t kind;
    values->ends[0] = 0;
    if (keys) keys->ends[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        const Message *each = messages[row];
        topics[row] = (int64_t)(intptr_t)each->topic;
        partitions[row] = each->partition;
        offsets[row] = each->offset;
        times[row] = timestamp(each, &kind);
        append_bytes(values, row, each->value, each->value_size);
        if (keys) append_bytes(keys, row, each->key, each->key_size);
    }
}

/* The headers of the rows, by librdkafka's functions. `sizes` has their number, and the bytes of their names and values.
   With `lists` (only its ends and bits are used) they are the columns, with room for as much: a row's own headers are
   those between its ends; a row without any is NULL. Returns the first row whose headers cannot be read, otherwise `rows`. */
int64_t txn_sink_headers(Message **messages, int64_t rows, Headers headers_of, Header header_at, int64_t *sizes,
                         Binary *lists, Binary *names, Binary *values) {
    sizes[0] = sizes[1] = sizes[2] = 0;
    if (lists) lists->ends[0] = names->ends[0] = values->ends[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        const void *headers, *value;
        const char *name;
        size_t size;
        int64_t first = sizes[0];
        int32_t error = headers_of(messages[row], &headers);
        if (error && error != NO_ENTRY) return row;
        for (size_t i = 0; !error && !header_at(headers, i, &name, &value, &size); i++) {
            if (lists) {
                append_bytes(names, sizes[0], (const uint8_t *)name, strlen(name));
                append_bytes(values, sizes[0], value, size);
            }
            sizes[0]++;
            sizes[1] += (int64_t)strlen(name);
            sizes[2] += value ? (int64_t)size : 0;
        }
        if (!lists) continue;
        lists->ends[row + 1] = (int32_t)sizes[0];
        if (sizes[0] > first)
            lists->valid[row >> 3] |= (uint8_t)(1u << (row & 7));
        else
            lists->nulls++;
    }
    return rows;
}

void txn_sink_destroy(Message **messages, int64_t count, Destroy destroy) {
    for (int64_t i = 0; i < count; i++) destroy(messages[i]);
}
