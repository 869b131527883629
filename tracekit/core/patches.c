/* Patches of the output of a unit, found when all its slices are known. */

#include "numbers.h"
#include "rewriter.h"

/* Finds the lanes of all tracks that may need some. Calls no Python code. */
enum outcome find_patches(Rewriter *self)
{
    size_t limit = self->most_log_bytes / 4;
    open_sorter(&self->patches, &self->scratch, limit);
    for (size_t i = 0; i < LOG_COUNT(self); i++) {
        LaneLog *log = &LOGS(self)[i];
        enum outcome outcome = DONE;
        end_log(log);
        if (log->tangled)
            outcome = assign_lanes(log, (uint32_t)i, &self->scratch, limit, self->snap_ns, &self->patches, &self->counts);
        if (outcome != DONE)
            return outcome;
        free_buffer(&log->bytes);
        free_buffer(&log->spilled);
    }
    return sort_records(&self->patches);
}

enum outcome next_patch(Rewriter *self)
{
    self->has_patch = 0;
    const Record *record = next_record(&self->patches);
    if (record == NULL)
        return self->patches.outcome;
    uint64_t patch = record->words[1], kind = patch & PATCH_KINDS, number = patch & ~PATCH_KINDS;
    size_t size = kind == PATCH_BLANK ? (size_t)number : kind == PATCH_DURATION ? (size_t)(number >> 57) : TID_SIZE;
    self->patch_at = record->words[0];
    self->patch.size = 0;
    if (!reserve(&self->patch, size + 24))
        return NO_MEMORY;
    char *behind = self->patch.data; /* end of the written text; spaces follow */
    if (kind == PATCH_LANE) {
        const LaneLog *log = &LOGS(self)[number >> 31];
        uint32_t tid;
        memcpy(&tid, log->tids.data + ((number & MAX_LANES) - 1) * sizeof tid, sizeof tid);
        behind = write_number(self->patch.data, tid);
    } else if (kind == PATCH_DURATION) {
        behind = write_us(self->patch.data, number & (uint64_t)MAX_SNAPPED_NS);
    }
    memset(behind, ' ', size - (size_t)(behind - self->patch.data));
    self->patch.size = size;
    self->has_patch = 1;
    return DONE;
}
