"""Every trap of the file formats: what is read as what, and what is refused with file and line."""

import numpy as np
import pytest
from senteval.data import read_sick, read_sts_set, read_stsbenchmark
from senteval_tiny import SICK_HEADER, refusal, write


@pytest.fixture
def read_sts(tmp_path):
    def read(sentences, scores):
        return read_sts_set("s", write(tmp_path / "input.txt", sentences), write(tmp_path / "gs.txt", scores))

    return read


@pytest.fixture
def read_benchmark(tmp_path):
    return lambda content: read_stsbenchmark("dev", write(tmp_path / "sts.csv", content))


@pytest.fixture
def read_sick_rows(tmp_path):
    return lambda content: read_sick("dev", write(tmp_path / "sick.txt", content))


def test_pairs_without_a_score_are_left_out(read_sts):
    pairs = read_sts("a\tb\nc\td\ne\tf\ng\th\n", "\n1.5\n\n4\n")
    assert (pairs.first, pairs.second, pairs.lines) == (["c", "g"], ["d", "h"], [2, 4])
    assert pairs.gold.dtype == np.float64
    assert pairs.gold.tolist() == [1.5, 4.0]


def test_a_last_pair_without_a_score_is_left_out(read_sts):
    assert read_sts("a\tb\nc\td\ne\tf\n", "1\n2\n\n").first == ["a", "c"]


@pytest.mark.parametrize("end", ["\n", "\n\n", " \n", "\t\n", "\r\n", "\n \r\n"])
def test_blank_lines_at_the_end_of_a_file_change_nothing(read_sts, read_benchmark, read_sick_rows, end):
    sentences, scores = "a\tb\nc\td\ne\tf\n", "1\n2\n\n"
    for pairs in (
        read_sts(sentences + end, scores),
        read_sts(sentences, scores + end),
        read_sts(sentences + end, scores + end),
    ):
        assert (pairs.first, pairs.second, pairs.gold.tolist(), pairs.lines) == (
            ["a", "c"],
            ["b", "d"],
            [1.0, 2.0],
            [1, 2],
        )
    assert read_benchmark(f"g\tf\ty\t0\t1\ta\tb\ng\tf\ty\t0\t2\tc\td\n{end}").first == ["a", "c"]
    assert read_sick_rows(f"{SICK_HEADER}1\ta\tb\t1\tx\n2\tc\td\t5\tx\n{end}").first == ["a", "c"]


def test_a_last_line_needs_no_line_end(read_sts):
    assert read_sts("a\tb\nc\td", "1\n2").second == ["b", "d"]


def test_a_gold_file_one_line_short_is_refused(read_sts):
    message = refusal(read_sts, "a\tb\nc\td\ne\tf\n", "1\n2\n")
    assert "gs.txt: 2 lines found, 3 expected" in message
    assert "input.txt" in message


@pytest.mark.parametrize("score", ["5.01", "-0.5", "nan", "inf", "-inf", "high", "1,5", "1_0e-1", "３"])
def test_an_sts_score_that_is_no_number_from_0_to_5_is_refused(read_sts, read_benchmark, score):
    message = refusal(read_sts, "a\tb\nc\td\n", f"1\n{score}\n")
    assert f"gs.txt:2: gold score '{score}' found, a number from 0 to 5 expected" in message
    message = refusal(read_benchmark, f"g\tf\ty\t0\t1\ta\tb\ng\tf\ty\t0\t{score}\tc\td\n")
    assert f"sts.csv:2: gold score '{score}' found" in message


def test_the_ends_of_the_scales_are_scores(read_sts, read_sick_rows):
    assert read_sts("a\tb\nc\td\n", "0\n5\n").gold.tolist() == [0.0, 5.0]
    assert read_sick_rows(SICK_HEADER + "1\ta\tb\t1\tx\n2\tc\td\t5\tx\n").gold.tolist() == [1.0, 5.0]


def test_a_sick_score_below_1_is_refused(read_sick_rows):
    message = refusal(read_sick_rows, SICK_HEADER + "1\ta\tb\t0.9\tx\n2\tc\td\t5\tx\n")
    assert "sick.txt:2: gold score '0.9' found, a number from 1 to 5 expected" in message


def test_a_table_row_without_a_score_is_refused_not_left_out(read_benchmark):
    message = refusal(read_benchmark, "g\tf\ty\t0\t1\ta\tb\ng\tf\ty\t0\t\tc\td\ng\tf\ty\t0\t2\te\tf\n")
    assert "sts.csv:2: gold score ''" in message


def test_a_missing_column_is_refused(read_sts, read_benchmark, read_sick_rows):
    assert "input.txt:2: expected 2 tab-separated columns but found 1" in refusal(read_sts, "a\tb\nc d\n", "1\n2\n")
    message = refusal(read_benchmark, "g\tf\ty\t0\t1\ta\tb\ng\tf\ty\t0\t1\ta\n")
    assert "sts.csv:2: expected at least 7 tab-separated columns but found 6" in message
    message = refusal(read_sick_rows, SICK_HEADER + "1\ta\tb\n")
    assert "sick.txt:2: expected at least 4 tab-separated columns but found 3" in message


def test_a_missing_column_is_refused_even_where_there_is_no_score(read_sts):
    assert "input.txt:2: expected 2 tab-separated columns but found 1" in refusal(
        read_sts, "a\tb\nc d\ne\tf\n", "1\n\n2\n"
    )


def test_a_third_column_in_an_sts_input_is_refused(read_sts):
    assert "input.txt:1: expected 2 tab-separated columns but found 3" in refusal(
        read_sts, "a\tb\tc\nd\te\n", "1\n2\n"
    )


def test_columns_after_the_seventh_are_allowed_in_stsbenchmark(read_benchmark):
    pairs = read_benchmark("g\tf\ty\t0\t1\ta\tb\tlicence\tsource\ng\tf\ty\t0\t2\tc\td\n")
    assert (pairs.first, pairs.second, pairs.gold.tolist()) == (["a", "c"], ["b", "d"], [1.0, 2.0])


def test_sick_takes_its_own_columns_and_skips_the_header(read_sick_rows):
    pairs = read_sick_rows(SICK_HEADER + "1\tA dog\tA cat\t3.5\tNEUTRAL\n2\tOne\tTwo\t2\tNEUTRAL\n")
    assert (pairs.first, pairs.second, pairs.lines) == (["A dog", "One"], ["A cat", "Two"], [2, 3])
    assert pairs.gold.tolist() == [3.5, 2.0]


def test_a_sick_file_without_header_is_refused_instead_of_losing_a_pair(read_sick_rows):
    message = refusal(read_sick_rows, "1\ta\tb\t3\tx\n2\tc\td\t5\tx\n3\te\tf\t4\tx\n")
    assert "sick.txt:1: a pair found, the header line expected" in message


def test_a_byte_order_mark_belongs_to_no_sentence_and_no_score(read_sts):
    pairs = read_sts("\ufeffa\tb\nc\td\n", "\ufeff1\n2\n")
    assert (pairs.first[0], pairs.gold[0]) == ("a", 1.0)


def test_bytes_that_are_not_utf8_are_refused(read_sts):
    message = refusal(read_sts, b"a\tb\nc\td\ncaf\xe9\te\n", "1\n2\n3\n")
    assert "input.txt:3: byte 0xe9" in message


def test_the_line_of_a_bad_byte_is_right_after_a_byte_order_mark(read_sts):
    assert "input.txt:2: byte 0xff" in refusal(read_sts, b"\xef\xbb\xbfa\tb\n\xff\td\n", "1\n2\n")


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"])
def test_only_newlines_end_a_line(read_sts, read_benchmark, read_sick_rows, separator):
    pairs = read_sts(f"a{separator}b\tc\nd\te\n", "1\n2\n")
    assert (pairs.first, pairs.second) == (["a b", "d"], ["c", "e"])
    assert read_benchmark(f"g\tf\ty\t0\t1\ta{separator}b\tc\ng\tf\ty\t0\t2\td\te\n").first == ["a b", "d"]
    assert read_sick_rows(SICK_HEADER + f"1\ta{separator}b\tc\t1\tx\n2\td\te\t2\tx\n").first == ["a b", "d"]


def test_carriage_returns_before_newlines_change_nothing(read_sts, read_benchmark, read_sick_rows):
    pairs = read_sts("a\tb\r\nc\td\r\ne\tf\r\n", "1\r\n\r\n3\r\n")
    assert (pairs.first, pairs.second, pairs.gold.tolist()) == (["a", "e"], ["b", "f"], [1.0, 3.0])
    assert read_benchmark("g\tf\ty\t0\t1\ta\tb\r\ng\tf\ty\t0\t2\tc\td\r\n").second == ["b", "d"]
    rows = SICK_HEADER.replace("\n", "\r\n") + "1\ta\tb\t1\r\n2\tc\td\t2\r\n"
    assert read_sick_rows(rows).gold.tolist() == [1.0, 2.0]
    assert "gold score 'high' found" in refusal(read_sts, "a\tb\r\nc\td\r\n", "1\r\nhigh\r\n")


def test_a_lone_quote_is_text(read_benchmark):
    pairs = read_benchmark('g\tf\ty\t0\t1\t" it is\tso\ng\tf\ty\t0\t2\tsaid " he\t"\n')
    assert (pairs.first, pairs.second) == (['" it is', 'said " he'], ["so", '"'])


def test_runs_of_white_space_become_single_blanks(read_sts):
    assert read_sts("  a \u00a0 b  \t c\nd\te\n", "1\n2\n").first == ["a b", "d"]


def test_an_empty_sentence_is_refused_if_it_counts(read_sts):
    assert "input.txt:2: an empty sentence" in refusal(read_sts, "a\tb\nc\t \n", "1\n2\n")
    assert "input.txt:2: an empty sentence" in refusal(read_sts, "a\tb\n\td\n", "1\n2\n")
    assert read_sts("a\tb\nc\t\nd\te\n", "1\n\n2\n").first == ["a", "d"]


def test_fewer_than_two_pairs_are_refused(read_sts, read_sick_rows):
    assert "gs.txt: 1 scored pairs found, at least 2" in refusal(read_sts, "a\tb\nc\td\n", "1\n\n")
    assert "gs.txt: 0 scored pairs found" in refusal(read_sts, "", "")
    assert "sick.txt: 0 scored pairs found" in refusal(read_sick_rows, SICK_HEADER)
    assert "sick.txt:1: expected at least 4 tab-separated columns but found an empty line" in refusal(
        read_sick_rows, ""
    )


def test_scores_that_are_all_the_same_are_refused(read_sts):
    assert "gs.txt: every gold score is 2.5" in refusal(read_sts, "a\tb\nc\td\n", "2.5\n2.50\n")


def test_a_long_or_odd_text_does_not_spoil_the_message(read_sts):
    message = refusal(read_sts, "a\tb\nc\td\n", "1\n" + "x\u2028\r" * 500 + "\n")
    assert len(message) < 400
    assert message.splitlines() == [message]


def test_a_file_that_cannot_be_read_is_a_data_error(tmp_path):
    assert "absent.csv: cannot be read" in refusal(read_stsbenchmark, "dev", tmp_path / "absent.csv")
