"""Families over lists. One function draws one variant; the reference body is written out."""

from __future__ import annotations

from agentrl_envs.code.families import Draw, FamilyList, Variant

family = FamilyList()

MIXED = [-3, 0, 7, 7, 2, -1, 12, -9]
"""What short lists lack: negative numbers, zero, a number twice, the largest and smallest late."""


@family("sum_list", level=1)
def _sum_list(d: Draw) -> Variant:
    return d.function(
        d.pick("sum_list", "total", "add_all"),
        "nums",
        d.pick("returns the sum of the numbers in nums", "adds up the list nums"),
        "return sum(nums)",
        edges=[([],), ([5],), ([-1, 1],), (MIXED,), ([-4],)],
        more=lambda: (d.ints(-9, 20),),
    )


@family("extreme_of_list", level=1)
def _extreme_of_list(d: Draw) -> Variant:
    word, call = d.pick(("largest", "max"), ("smallest", "min"))
    return d.function(
        d.pick(word, f"find_{call}", f"{word}_number"),
        "nums",
        f"returns the {word} number in the list nums",
        f"return {call}(nums)",
        edges=[
            ([1],),
            ([-2, -5],),
            ([3, 3, 1],),
            ([2, 9, -10, 1],),
            (MIXED,),
            ([-2, 0, -7],),
            ([3, 0, 5],),
            ([8],),
            ([15, -12, 3, 0, 7, 1],),
        ],
        more=lambda: (d.ints(-20, 20, least=3),),
    )


@family("remove_duplicates", level=2)
def _remove_duplicates(d: Draw) -> Variant:
    return d.function(
        d.pick("remove_duplicates", "unique"),
        "items",
        "removes duplicates from the list items in order, using dict.fromkeys",
        "return list(dict.fromkeys(items))",
        edges=[
            ([],),
            ([3, 1, 3],),
            ([9, 9, 2, 2, 1],),
            (MIXED,),
            ([4],),
            ([1, 1],),
            ([5, 0, 5, -1, 0],),
        ],
        more=lambda: (d.ints(1, 5, least=3, most=6),),
    )


@family("second_extreme", level=3)
def _second_extreme(d: Draw) -> Variant:
    word, index = d.pick(("largest", -2), ("smallest", 1))
    return d.function(
        f"second_{word}",
        "nums",
        f"returns the second {word} number in the list nums, using sorted",
        f"return sorted(nums)[{index}]",
        edges=[
            ([1, 2],),
            ([5, -1, 3],),
            ([0, 7, 2, 12, -1, 15, 11, -9, 14, -3],),
            ([0, 4, -1],),
            ([-5, -2],),
            ([14, -9, 15, -12, 3, 0, 7],),
        ],
        more=lambda: (d.shuffled(range(-5, 20))[: d.int(3, 5)],),
    )


@family("sum_of_squares", level=2)
def _sum_of_squares(d: Draw) -> Variant:
    word, k = d.pick(("squares", 2), ("cubes", 3))
    return d.function(
        f"sum_{word}",
        "nums",
        f"returns the sum of the {word} of the numbers in nums",
        f"return sum(n ** {k} for n in nums)",
        edges=[([],), ([3],), ([-1, 2],), (MIXED,), ([-4],)],
        more=lambda: (d.ints(-5, 9),),
    )


@family("count_parity", level=2)
def _count_parity(d: Draw) -> Variant:
    word, rest = d.pick(("even", 0), ("odd", 1))
    return d.function(
        f"count_{word}",
        "nums",
        d.pick(
            f"returns how many {word} numbers are in nums", f"counts the {word} numbers in nums"
        ),
        f"return sum(n % 2 == {rest} for n in nums)",
        edges=[([],), ([1, 3],), ([2, 4, 6],), (MIXED,), ([4],), ([-5],), ([-4],), ([4, 4, 7, 7],)],
        more=lambda: (d.ints(0, 20),),
    )


@family("filter_above", level=2)
def _filter_above(d: Draw) -> Variant:
    k = d.pick(0, 5, 10)
    word, sign = d.pick(("greater", ">"), ("less", "<"))
    return d.function(
        d.pick("filter_list", "select", "keep"),
        "nums",
        f"returns the numbers in nums that are {word} than {k}",
        f"return [n for n in nums if n {sign} {k}]",
        edges=[
            ([],),
            ([k],),
            ([k + 1, k - 1],),
            ([k + 1],),
            ([k + n for n in MIXED],),
            ([-3, -30],),
            ([k - 1, k - 1, k + 1, k + 1],),
            ([0, k + 12, -30],),
        ],
        more=lambda: (d.ints(k - 9, k + 9),),
    )


@family("filter_parity", level=2)
def _filter_parity(d: Draw) -> Variant:
    word, rest = d.pick(("even", 0), ("odd", 1))
    return d.function(
        d.pick(f"only_{word}", f"get_{word}s"),
        "nums",
        f"returns a list of the {word} numbers in nums",
        f"return [n for n in nums if n % 2 == {rest}]",
        edges=[([],), ([1, 3],), ([2, 4],), (MIXED,), ([3],), ([-4],), ([4, 4, 7, 7],)],
        more=lambda: (d.ints(0, 20, least=3),),
    )


@family("map_list", level=2)
def _map_list(d: Draw) -> Variant:
    name, task, body = d.pick(
        ("double_all", "returns a list with every number in nums doubled", "n * 2"),
        ("square_all", "returns a list of the squares of nums", "n ** 2"),
        ("add_one", "returns a list with 1 added to every number in nums", "n + 1"),
        ("negate_all", "returns a list with every number in nums negated", "-n"),
    )
    return d.function(
        name,
        "nums",
        task,
        f"return [{body} for n in nums]",
        edges=[([],), ([3],), ([-1, 2],), (MIXED,)],
        more=lambda: (d.ints(-9, 20),),
    )


@family("sort_list", level=1)
def _sort_list(d: Draw) -> Variant:
    name, task, body = d.pick(
        (
            "sort_down",
            "returns nums from largest to smallest, using sorted",
            "sorted(nums, reverse=True)",
        ),
        ("sort_up", "returns nums from smallest to largest, using sorted", "sorted(nums)"),
    )
    return d.function(
        name,
        "nums",
        task,
        f"return {body}",
        edges=[([],), ([2, 1, 3],), ([1, 2, 2],), ([10, 9, -2],), (MIXED,), ([2, 1],), ([4],)],
        more=lambda: (d.ints(-9, 20, least=3),),
    )


@family("product_list", level=2)
def _product_list(d: Draw) -> Variant:
    return d.function(
        d.pick("product", "multiply_all"),
        "nums",
        d.pick("returns the product of the numbers in nums", "multiplies all the numbers in nums"),
        ["result = 1", "for n in nums:", "    result *= n", "return result"],
        edges=[([5],), ([0, 3],), ([-1, 2],), ([-3, 1, 7, 7, 2, -1, 12, 5],)],
        more=lambda: (d.ints(-4, 9),),
    )


@family("contains", level=1)
def _contains(d: Draw) -> Variant:
    return d.function(
        d.pick("contains", "has_item", "is_in"),
        "items, x",
        d.pick(
            "returns True if x is in the list items", "checks whether the list items contains x"
        ),
        "return x in items",
        edges=[
            ([], 1),
            ([1], 1),
            ([1, 2], 3),
            (MIXED, -9),
            (MIXED, 0),
            (MIXED, 4),
            (MIXED, -7),
            (MIXED, -3),
            ([3], -3),
            ([2, 9], 2),
            ([9], 52),
            ([], 0),
        ],
        more=lambda: (d.ints(0, 5, least=3), d.int(0, 5)),
    )


@family("concat", level=1)
def _concat(d: Draw) -> Variant:
    return d.function(
        d.pick("concat", "join_lists", "combine"),
        "a, b",
        d.pick(
            "returns the lists a and b joined into one list", "returns a list of a followed by b"
        ),
        "return a + b",
        edges=[([], []), ([1], []), ([], [2]), ([1], [1]), (MIXED, MIXED[::-1])],
        more=lambda: (d.ints(0, 9, most=3), d.ints(0, 9, most=3)),
    )


@family("slice_list", level=1)
def _slice_list(d: Draw) -> Variant:
    name, task, body = d.pick(
        (
            "every_second",
            "returns every second item of the list items, using a slice",
            "items[::2]",
        ),
        ("reverse_list", "returns the list items in reverse order, using a slice", "items[::-1]"),
        ("drop_first", "returns the list items without its first item", "items[1:]"),
        ("first_three", "returns the first three items of the list items", "items[:3]"),
    )
    return d.function(
        name,
        "items",
        task,
        f"return {body}",
        edges=[([1],), ([1, 2],), ([4, 3, 2, 1],), (MIXED,), ([],), ([1, 1],)],
        more=lambda: (d.ints(0, 20, least=3),),
    )


@family("average_list", level=1)
def _average_list(d: Draw) -> Variant:
    return d.function(
        d.pick("average", "mean", "avg"),
        "nums",
        d.pick("returns the average of the numbers in nums", "returns the mean of the list nums"),
        "return sum(nums) / len(nums)",
        edges=[([5],), ([1, 2],), ([-1, 1],), (MIXED,), ([0, 6],), ([1, 1, 2],), ([-4],)],
        more=lambda: (d.ints(-9, 20),),
    )


@family("common_items", level=2)
def _common_items(d: Draw) -> Variant:
    name, word = d.pick(("common", "in"), ("only_in_first", "not in"))
    return d.function(
        name,
        "a, b",
        f"returns the items of the list a that are {word} the list b",
        f"return [x for x in a if x {word} b]",
        edges=[
            ([], [1]),
            ([1, 2], []),
            ([1, 2], [2, 3]),
            ([2, 2, 1], [2]),
            (MIXED, [-9, 7, -1, 3, 0]),
            ([1, 2], [1, 2]),
            ([4, 4, 1], [1]),
            ([0, 6], []),
            ([0, 6], [0]),
        ],
        more=lambda: (d.shuffled(range(6))[:3], d.shuffled(range(6))[:3]),
    )


@family("count_up", level=1)
def _count_up(d: Draw) -> Variant:
    name, task, body = d.pick(
        ("count_up", "returns the list of numbers from 1 to n", "range(1, n + 1)"),
        ("countdown", "returns the list of numbers from n down to 1", "range(n, 0, -1)"),
        ("first_evens", "returns the list of even numbers from 2 to n", "range(2, n + 1, 2)"),
    )
    return d.function(
        name,
        "n",
        task,
        f"return list({body})",
        edges=[(0,), (1,), (2,), (10,), (60,)],
        more=lambda: (d.int(3, 9),),
    )


@family("pairwise_sum", level=3)
def _pairwise_sum(d: Draw) -> Variant:
    word, sign = d.pick(("sums", "+"), ("products", "*"))
    return d.function(
        f"pair_{word}",
        "a, b",
        f"returns a list of the {word} of the pairs of items of a and b, using zip",
        f"return [x {sign} y for x, y in zip(a, b)]",
        edges=[([], []), ([1], [2]), ([0, -1], [5, 5]), (MIXED, MIXED[::-1])],
        more=lambda: (d.shuffled(range(9))[:3], d.shuffled(range(9))[:3]),
    )


@family("list_end", level=1)
def _list_end(d: Draw) -> Variant:
    word, index = d.pick(("first", 0), ("last", -1), ("second", 1))
    return d.function(
        d.pick(f"{word}_item", f"get_{word}", word),
        "items",
        f"returns the {word} item of the list items",
        f"return items[{index}]",
        edges=[
            ([1, 2],),
            ([3, 2, 1],),
            ([-7, -4, 3, -9],),
            ([0, 0, 5, 0],),
            *([([6],)] if index != 1 else []),
            (MIXED,),
        ],
        more=lambda: (d.ints(0, 20, least=3),),
    )


@family("count_item", level=2)
def _count_item(d: Draw) -> Variant:
    return d.function(
        d.pick("count_item", "occurrences"),
        "items, x",
        "returns how many times x occurs in the list items, using count",
        "return items.count(x)",
        edges=[
            ([], 1),
            ([1, 1], 1),
            ([2], 1),
            ([1, 2, 1], 1),
            (MIXED, 7),
            (MIXED, -9),
            (MIXED, 4),
            ([5], 5),
            ([2], 0),
            ([9], 51),
            ([], -2),
            ([-5, 1], 5),
            ([0], -2),
            ([0, 6], 0),
        ],
        more=lambda: (d.ints(0, 3, least=3, most=6), d.int(0, 3)),
    )


@family("range_of_list", level=2)
def _range_of_list(d: Draw) -> Variant:
    return d.function(
        d.pick("spread", "value_range"),
        "nums",
        "returns the difference between the largest and smallest number in nums",
        "return max(nums) - min(nums)",
        edges=[
            ([5],),
            ([1, 9],),
            ([-3, 3],),
            ([3, 1, 2],),
            (MIXED,),
            ([0, 5],),
            ([15, -12, 3, 0, 7],),
        ],
        more=lambda: (d.ints(-9, 20, least=3),),
    )


@family("word_lengths", level=2)
def _word_lengths(d: Draw) -> Variant:
    return d.function(
        d.pick("word_lengths", "lengths"),
        "words",
        "returns the list of the lengths of the strings in words",
        "return [len(w) for w in words]",
        edges=[
            ([],),
            (["a"],),
            (["", "ab"],),
            (["One,", "", "b 2", "c", "d", "ee", "Ffff"],),
            (["a", "a", "b"],),
        ],
        more=lambda: (d.words().split(),),
    )
