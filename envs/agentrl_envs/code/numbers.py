"""Families over numbers. One function draws one variant; the reference body is written out."""

from __future__ import annotations

from agentrl_envs.code.families import Draw, FamilyList, Variant

family = FamilyList()


@family("multiply", level=1)
def _multiply(d: Draw) -> Variant:
    k, name = d.pick((2, "double"), (3, "triple"), (4, "times_four"), (5, "times_five"))
    return d.function(
        name,
        "n",
        d.pick(f"returns n times {k}", f"multiplies n by {k}"),
        f"return n * {k}",
        edges=[(0,), (1,), (-1,), (137,), (-60,)],
        more=lambda: (d.int(-50, 50),),
    )


@family("add_constant", level=1)
def _add_constant(d: Draw) -> Variant:
    k = d.int(2, 20)
    return d.function(
        f"add_{k}",
        "n",
        d.pick(f"returns n plus {k}", f"adds {k} to n"),
        f"return n + {k}",
        edges=[(0,), (-k,), (1,), (137,), (-60,)],
        more=lambda: (d.int(-50, 50),),
    )


@family("parity", level=1)
def _parity(d: Draw) -> Variant:
    word, rest = d.pick(("even", 0), ("odd", 1))
    return d.function(
        f"is_{word}",
        "n",
        d.pick(f"returns True if n is {word}", f"checks whether n is {word}"),
        f"return n % 2 == {rest}",
        edges=[(0,), (1,), (-3,), (-4,), (2,), (101,), (138,)],
        more=lambda: (d.int(-50, 50),),
    )


@family("divisible", level=1)
def _divisible(d: Draw) -> Variant:
    k = d.pick(3, 4, 5, 7)
    return d.function(
        d.pick(f"divisible_by_{k}", f"is_multiple_of_{k}"),
        "n",
        d.pick(f"returns True if n is divisible by {k}", f"checks whether n is a multiple of {k}"),
        f"return n % {k} == 0",
        edges=[(0,), (k,), (1,), (-k,), (2 * k,), (k - 1,), (100 * k,), (100 * k + 1,), (-1,)],
        more=lambda: (d.int(-6, 12) * d.pick(1, k),),
    )


@family("power", level=1)
def _power(d: Draw) -> Variant:
    name, k = d.pick(("square", 2), ("cube", 3))
    return d.function(
        name,
        "n",
        d.pick(f"returns the {name} of n", f"computes n {name}d"),
        f"return n ** {k}",
        edges=[(0,), (1,), (-2,), (120,), (-15,)],
        more=lambda: (d.int(-12, 12),),
    )


@family("difference", level=1)
def _difference(d: Draw) -> Variant:
    return d.function(
        d.pick("difference", "distance", "abs_diff"),
        "a, b",
        d.pick("returns the absolute difference of a and b", "returns how far apart a and b are"),
        "return abs(a - b)",
        edges=[(0, 0), (3, 8), (-2, 2), (150, -70), (7, 7), (0, 4)],
        more=lambda: (d.int(-30, 30), d.int(-30, 30)),
    )


@family("extreme_of_two", level=1)
def _extreme_of_two(d: Draw) -> Variant:
    word, call = d.pick(("larger", "max"), ("smaller", "min"))
    return d.function(
        word,
        "a, b",
        f"returns the {word} of a and b",
        f"return {call}(a, b)",
        edges=[
            (1, 2),
            (2, 1),
            (-5, -3),
            (4, 4),
            (150, -70),
            (-70, 150),
            (0, -1),
            (0, 1),
            (150, 130),
        ],
        more=lambda: (d.int(-30, 30), d.int(-30, 30)),
    )


@family("extreme_of_three", level=1)
def _extreme_of_three(d: Draw) -> Variant:
    word, call = d.pick(("largest", "max"), ("smallest", "min"))
    return d.function(
        f"{call}_of_three",
        "a, b, c",
        d.pick(f"returns the {word} of three numbers", f"returns the {word} of a, b and c"),
        f"return {call}(a, b, c)",
        edges=[
            (1, 2, 3),
            (3, 2, 1),
            (2, 3, 1),
            (-1, -1, -2),
            (120, 0, -1),
            (0, 150, 130),
            (-1, 0, 140),
            (0, -1, -2),
            (2, 0, 1),
            (120, 140, 130),
        ],
        more=lambda: (d.int(-30, 30), d.int(-30, 30), d.int(-30, 30)),
    )


@family("compare_zero", level=1)
def _compare_zero(d: Draw) -> Variant:
    word, sign, verb = d.pick(("positive", ">", "above"), ("negative", "<", "below"))
    return d.function(
        f"is_{word}",
        "n",
        d.pick(f"returns True if n is {word}", f"checks whether n is {verb} zero"),
        f"return n {sign} 0",
        edges=[(0,), (1,), (-1,), (2,), (137,), (-137,)],
        more=lambda: (d.int(-50, 50),),
    )


@family("average", level=1)
def _average(d: Draw) -> Variant:
    return d.function(
        d.pick("average", "mean", "midpoint"),
        "a, b",
        d.pick("returns the average of a and b", "returns the number halfway between a and b"),
        "return (a + b) / 2",
        edges=[(0, 0), (1, 2), (-3, 3), (0, 3), (7, 7), (150, -75)],
        more=lambda: (d.int(-30, 30), d.int(-30, 30)),
    )


@family("temperature", level=2)
def _temperature(d: Draw) -> Variant:
    name, param, task, body = d.pick(
        ("to_fahrenheit", "c", "converts c degrees Celsius to Fahrenheit", "return c * 9 / 5 + 32"),
        ("to_celsius", "f", "converts f degrees Fahrenheit to Celsius", "return (f - 32) * 5 / 9"),
    )
    return d.function(
        name,
        param,
        task,
        body,
        edges=[(0,), (32,), (-40,), (1,), (137,)],
        more=lambda: (d.int(-50, 120),),
    )


@family("rectangle", level=1)
def _rectangle(d: Draw) -> Variant:
    word, body = d.pick(("area", "return w * h"), ("perimeter", "return 2 * (w + h)"))
    return d.function(
        d.pick(word, f"rectangle_{word}"),
        "w, h",
        f"returns the {word} of a rectangle with width w and height h",
        body,
        edges=[(1, 1), (0, 5), (3, 4), (120, 70), (1, 8), (0, 0)],
        more=lambda: (d.int(1, 30), d.int(1, 30)),
    )


@family("clamp", level=2)
def _clamp(d: Draw) -> Variant:
    low, high = d.pick((0, 10), (0, 100), (1, 5))
    return d.function(
        d.pick("clamp", "limit"),
        "n",
        f"returns n, but at least {low} and at most {high}, using min and max",
        f"return max({low}, min({high}, n))",
        edges=[(low,), (high,), (low - 1,), (high + 1,), (low + 1,), (low + 2,), (-high - 1,)],
        more=lambda: (d.int(low - high, 2 * high),),
    )


@family("last_digit", level=1)
def _last_digit(d: Draw) -> Variant:
    return d.function(
        d.pick("last_digit", "ones_digit"),
        "n",
        d.pick("returns the last digit of n", "returns the remainder of n divided by 10"),
        "return n % 10",
        edges=[(0,), (7,), (10,), (99,), (1,), (1000003,)],
        more=lambda: (d.int(0, 5000),),
    )


@family("digit_sum", level=2)
def _digit_sum(d: Draw) -> Variant:
    return d.function(
        d.pick("digit_sum", "sum_digits", "sum_of_digits"),
        "n",
        d.pick("returns the sum of the digits of n", "adds up the digits of n"),
        "return sum(int(c) for c in str(n))",
        edges=[(0,), (9,), (10,), (999,), (1,), (20007,)],
        more=lambda: (d.int(0, 5000),),
    )


@family("digit_count", level=2)
def _digit_count(d: Draw) -> Variant:
    return d.function(
        d.pick("count_digits", "num_digits", "digit_count"),
        "n",
        d.pick("returns the number of digits in n", "counts how many digits n has"),
        "return len(str(n))",
        edges=[(0,), (9,), (10,), (100,), (1,), (99,), (10000003,)],
        more=lambda: (d.int(0, 10 ** d.int(1, 6)),),
    )


@family("factorial", level=2)
def _factorial(d: Draw) -> Variant:
    return d.function(
        d.pick("factorial", "fact"),
        "n",
        d.pick("returns the factorial of n", "computes n factorial"),
        ["result = 1", "for i in range(2, n + 1):", "    result *= i", "return result"],
        edges=[(0,), (1,), (2,), (12,), (15,)],
        more=lambda: (d.int(3, 10),),
    )


@family("fibonacci", level=3)
def _fibonacci(d: Draw) -> Variant:
    return d.function(
        d.pick("fibonacci", "fib"),
        "n",
        "returns the n-th Fibonacci number, starting from 0 and 1",
        ["a, b = 0, 1", "for _ in range(n):", "    a, b = b, a + b", "return a"],
        edges=[(0,), (1,), (2,), (20,), (30,)],
        more=lambda: (d.int(3, 15),),
    )


@family("prime", level=2)
def _prime(d: Draw) -> Variant:
    return d.function(
        d.pick("is_prime", "prime"),
        "n",
        d.pick("returns True if n is a prime number", "checks whether n is prime"),
        "return n > 1 and all(n % i for i in range(2, n))",
        edges=[
            (1,),
            (2,),
            (3,),
            (9,),
            (4,),
            (25,),
            (49,),
            (77,),
            (0,),
            (-7,),
            (97,),
            (121,),
            (143,),
            (289,),
            (101,),
        ],
        more=lambda: (d.int(4, 60),),
    )


@family("gcd", level=2)
def _gcd(d: Draw) -> Variant:
    return d.function(
        d.pick("gcd", "common_divisor"),
        "a, b",
        "returns the greatest common divisor of a and b, using math.gcd",
        ["while b:", "    a, b = b, a % b", "return a"],
        edges=[(1, 1), (12, 18), (7, 5), (9, 6), (8, 8), (0, 5), (6, 0), (270, 192), (0, 0)],
        more=lambda: (d.int(1, 12) * d.int(1, 6), d.int(1, 12) * d.int(1, 6)),
    )


@family("sum_up_to", level=2)
def _sum_up_to(d: Draw) -> Variant:
    return d.function(
        d.pick("sum_to", "sum_up_to", "total"),
        "n",
        d.pick("returns the sum of the numbers from 1 to n", "adds all whole numbers from 1 to n"),
        "return sum(range(1, n + 1))",
        edges=[(0,), (1,), (2,), (100,), (250,)],
        more=lambda: (d.int(3, 60),),
    )


@family("sum_of_powers_up_to", level=2)
def _sum_of_powers_up_to(d: Draw) -> Variant:
    word, k = d.pick(("squares", 2), ("cubes", 3))
    return d.function(
        f"sum_of_{word}",
        "n",
        f"returns the sum of the {word} of the numbers from 1 to n",
        f"return sum(i ** {k} for i in range(1, n + 1))",
        edges=[(0,), (1,), (2,), (30,), (60,)],
        more=lambda: (d.int(3, 20),),
    )


@family("fizzbuzz", level=3)
def _fizzbuzz(d: Draw) -> Variant:
    k, word = d.pick((3, "Fizz"), (5, "Buzz"), (7, "Bang"))
    return d.function(
        word.lower(),
        "n",
        f'returns "{word}" if n is divisible by {k}, and n otherwise',
        f'return "{word}" if n % {k} == 0 else n',
        edges=[(0,), (1,), (k,), (2 * k,), (k + 1,), (-k,), (-1,), (100 * k,), (100 * k + 1,)],
        more=lambda: (d.int(1, 15) * d.pick(1, k),),
    )


@family("collatz", level=3)
def _collatz(d: Draw) -> Variant:
    return d.function(
        d.pick("next_number", "collatz_step"),
        "n",
        "returns n // 2 if n is even, and 3 * n + 1 if n is odd",
        "return n // 2 if n % 2 == 0 else 3 * n + 1",
        edges=[(1,), (2,), (0,), (-4,), (-3,), (101,), (134,)],
        more=lambda: (d.int(1, 60),),
    )


@family("unit_conversion", level=1)
def _unit_conversion(d: Draw) -> Variant:
    big, small, k = d.pick(
        ("hours", "minutes", 60), ("minutes", "seconds", 60), ("days", "hours", 24)
    )
    return d.function(
        f"{big}_to_{small}",
        big,
        d.pick(f"converts {big} to {small}", f"returns the number of {small} in so many {big}"),
        f"return {big} * {k}",
        edges=[(0,), (1,), (100,), (250,)],
        more=lambda: (d.int(2, 60),),
    )


@family("between", level=2)
def _between(d: Draw) -> Variant:
    low, high = d.pick((1, 10), (0, 100), (5, 20))
    return d.function(
        d.pick("in_range", "is_between"),
        "n",
        f"returns True if n is between {low} and {high} inclusive",
        f"return {low} <= n <= {high}",
        edges=[
            (low,),
            (high,),
            (low - 1,),
            (high + 1,),
            (0,),
            (low + 1,),
            (3 * high,),
            (-high,),
            (high + 100,),
        ],
        more=lambda: (d.int(low - high, 2 * high),),
    )


@family("discount", level=2)
def _discount(d: Draw) -> Variant:
    k = d.pick(10, 20, 25, 50)
    return d.function(
        d.pick("discount", "sale_price"),
        "price",
        f"returns the price less {k} percent, that is price * {(100 - k) / 100}",
        f"return price * {100 - k} / 100",
        edges=[(0,), (100,), (1,), (250,), (1000,)],
        more=lambda: (d.int(2, 400),),
    )


@family("grade", level=2)
def _grade(d: Draw) -> Variant:
    k = d.pick(40, 50, 60)
    return d.function(
        d.pick("result", "grade"),
        "score",
        f'returns "pass" if score is at least {k}, and "fail" otherwise',
        f'return "pass" if score >= {k} else "fail"',
        edges=[(k,), (k - 1,), (0,), (100,), (1,), (k + 1,)],
        more=lambda: (d.int(0, 100),),
    )
