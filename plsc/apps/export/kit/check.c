/* Say whether embeddings of the kit's pictures are right, or which fault is the likely cause. check.py is the same program and
   explains it. In the folder of the kit, with a little-endian processor:

       cc -std=c99 -O2 check.c -o check -lm && ./check mine.npy */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAULTS = 100, LEVELS = 10, PAIRS = 10000, LINE = 1000 };
static char fault[FAULTS][LINE], level_name[LEVELS][LINE], title[LINE], threshold[LINE];
static char say_nan[LINE], say_zeros[LINE], say_length[LINE], say_rows[LINE], say_weights[LINE], say_coarse[LINE];
static double level[LEVELS];
static int faults, levels, pairs, pair[PAIRS][3], count, size, compared;

static void stop(const char *path, const char *why) {
    printf("error: %s: %s\n", path, why);
    exit(2);
}

/* Read a whole file, with a 0 behind it. */
static char *read_all(const char *path, long *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) || (*bytes = ftell(file)) < 0) stop(path, "cannot be read");
    char *data = calloc(*bytes + 1, 1);
    rewind(file);
    if (!data || fread(data, 1, *bytes, file) != (size_t)*bytes) stop(path, "cannot be read");
    fclose(file);
    return data;
}

static void read_kit(const char *path) {
    long bytes;
    for (char *line = strtok(read_all(path, &bytes), "\n"); line; line = strtok(NULL, "\n")) {
        if (strlen(line) >= LINE || faults == FAULTS || levels == LEVELS || pairs == PAIRS) stop(path, "is too large");
        sscanf(line, "pictures %d", &count);
        sscanf(line, "size %d", &size);
        sscanf(line, "compared %d", &compared);
        sscanf(line, "threshold %s %[^\n]", threshold, title);
        sscanf(line, "say nan %[^\n]", say_nan);
        sscanf(line, "say zeros %[^\n]", say_zeros);
        sscanf(line, "say length %[^\n]", say_length);
        sscanf(line, "say rows %[^\n]", say_rows);
        sscanf(line, "say weights %[^\n]", say_weights);
        sscanf(line, "say coarse %[^\n]", say_coarse);
        faults += sscanf(line, "fault %[^\n]", fault[faults]) == 1;
        levels += sscanf(line, "level %lf %[^\n]", &level[levels], level_name[levels]) == 2;
        pairs += sscanf(line, "pair %d %d %d", &pair[pairs][0], &pair[pairs][1], &pair[pairs][2]) == 3;
    }
}

static float *read_rows(const char *path, int rows) {
    long bytes, start = 0;
    char wanted[LINE], *data = read_all(path, &bytes);
    if (bytes >= 10 && !memcmp(data, "\x93NUMPY", 6)) {
        start = 10 + (unsigned char)data[8] + 256 * (unsigned char)data[9];
        sprintf(wanted, "'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d),", rows, size);
        if (!strstr(data + 10, wanted)) {
            printf("fault: size: %s: must be float32 [%d, %d], it is of another type or shape\n", path, rows, size);
            exit(1);
        }
    }
    if (bytes - start != 4L * rows * size) {
        printf("fault: size: %s: must have %d x %d float32 numbers, has %.10g\n", path, rows, size, (bytes - start) / 4.0);
        exit(1);
    }
    float *numbers = malloc(4L * rows * size + 1);
    if (!numbers) stop(path, "needs more memory");
    memcpy(numbers, data + start, 4L * rows * size);
    return numbers;
}

static double dot(const float *a, const float *b) {
    double sum = 0;
    for (int k = 0; k < size; k++) sum += (double)a[k] * b[k];
    return sum;
}

static int right_pairs(const float *rows) {
    int right = 0;
    for (int p = 0; p < pairs; p++)
        right += (dot(rows + (long)pair[p][0] * size, rows + (long)pair[p][1] * size) > atof(threshold)) == pair[p][2];
    return right;
}

int main(int argc, char **argv) {
    if (argc != 2) return puts("usage: ./check mine.npy"), 2;
    read_kit("kit.txt");
    float *right = read_rows("reference.npy", count), *wrong = read_rows("faults.npy", faults * compared);
    float *mine = read_rows(argv[1], count);
    double *length = calloc(count, sizeof *length);
    int bad = 0, zeros = 0;
    for (int i = 0; i < count; i++) {
        length[i] = sqrt(dot(mine + (long)i * size, mine + (long)i * size));
        bad += !isfinite(length[i]);
        zeros += length[i] < 1e-6;
    }
    if (bad) return printf("fault: %s (%d of %d rows)\n", say_nan, bad, count), 1;
    if (zeros) return printf("fault: %s (%d of %d rows)\n", say_zeros, zeros, count), 1;

    double sum = 0, least = 1, near = 0, nearest = 0, all = 0, all_right = 0, sum_length = 0, off_length = 0;
    for (int i = 0; i < count; i++) {
        double most = -1, own = 0;
        for (int j = 0; j < count; j++) {
            double cosine = dot(mine + (long)i * size, right + (long)j * size) / length[i];
            if (j == i) own = cosine;
            if (cosine > most) most = cosine;
            all += cosine;
            all_right += dot(right + (long)i * size, right + (long)j * size);
        }
        sum += own;
        nearest += most;
        if (own < least) least = own;
        if (i < compared) near += own / compared;
        sum_length += length[i];
        off_length += fabs(length[i] - 1);
    }
    double own = 1 - sum / count, moved = 1 - nearest / count, best = 2, last = level[levels - 1];
    double knows = (count * sum - all) / ((double)count * count - all_right);
    int cause = 0, wrong_length = off_length / count > 0.1;
    for (int f = 0; f < faults; f++) {
        double from = 1;
        for (int i = 0; i < compared; i++)
            from -= dot(mine + (long)i * size, wrong + ((long)f * compared + i) * size) / length[i] / compared;
        if (from < best) best = from, cause = f;
    }
    printf("cosine with the reference: mean %.4f, least %.4f\n", sum / count, least);
    printf("mean length: %.4f\n", sum_length / count);
    if (*threshold)
        printf("pairs right at %s (%s): %d of %d, of the reference %d\n", threshold, title, right_pairs(mine), pairs, right_pairs(right));
    char found[2 * LINE] = "";
    if (own <= level[0]) {}
    else if (moved < own / 2 && moved <= last) sprintf(found, "%s", say_rows);
    else if (best < (1 - near) / 2) sprintf(found, "%s; cosine with what that gives: mean %.4f", fault[cause], 1 - best);
    else if (own > last) sprintf(found, "%s", knows < 0.25 ? say_weights : say_coarse);
    if (wrong_length || *found)
        return printf("fault: %s%s%s\n", wrong_length ? say_length : "", wrong_length && *found ? "; and " : "", found), 1;
    for (cause = 0; own > level[cause]; cause++) {}
    printf("pass: %s\n", level_name[cause]);
    return 0;
}
