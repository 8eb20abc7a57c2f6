"""Families over strings. One function draws one variant; the reference body is written out."""

from __future__ import annotations

from agentrl_envs.code.families import Draw, FamilyList, Variant

family = FamilyList()


@family("reverse_string", level=1)
def _reverse_string(d: Draw) -> Variant:
    return d.function(
        d.pick("reverse", "reverse_string", "backwards"),
        "s",
        d.pick("returns the string s reversed", "reverses the string s"),
        "return s[::-1]",
        edges=[("",), ("a",), ("ab",), ("Ab, c9",), (" two  words here ",)],
        more=lambda: (d.word(),),
    )


@family("count_vowels", level=2)
def _count_vowels(d: Draw) -> Variant:
    return d.function(
        d.pick("count_vowels", "num_vowels", "vowels"),
        "s",
        d.pick("returns the number of vowels in s", "counts the vowels in the string s"),
        'return sum(c in "aeiou" for c in s)',
        edges=[
            ("",),
            ("aeiou",),
            ("xyz",),
            ("banana",),
            ("quiet, audio-ice 7",),
            ("a",),
            ("b",),
            ("be",),
        ],
        more=lambda: (d.words(least=1, most=2),),
    )


@family("palindrome", level=2)
def _palindrome(d: Draw) -> Variant:
    def more() -> tuple[str]:
        word = d.word()[: d.int(2, 4)]
        return (d.pick(word, word + word[::-1], word + word[-2::-1]),)

    return d.function(
        d.pick("is_palindrome", "palindrome"),
        "s",
        d.pick("returns True if s is a palindrome", "checks whether s reads the same backwards"),
        "return s == s[::-1]",
        edges=[
            ("",),
            ("a",),
            ("ab",),
            ("level",),
            ("abca",),
            ("abba",),
            ("abcda",),
            ("abxyba",),
            ("aa",),
            ("abcdefgfedcba",),
            ("abcdefgxedcba",),
        ],
        more=more,
    )


@family("count_letter", level=2)
def _count_letter(d: Draw) -> Variant:
    letter = d.pick("a", "e", "o", "r")
    return d.function(
        f"count_{letter}",
        "s",
        f'returns how many times "{letter}" occurs in s',
        f'return s.count("{letter}")',
        edges=[
            ("",),
            (letter,),
            (letter * 3,),
            (f"s{letter}-{letter}, {letter.upper()}{letter}9 bu{letter}",),
            ("b",),
            (letter + "b",),
        ],
        more=lambda: (d.words(least=1, most=2),),
    )


@family("end_character", level=1)
def _end_character(d: Draw) -> Variant:
    word, index = d.pick(("first", 0), ("last", -1))
    return d.function(
        d.pick(f"{word}_char", f"{word}_letter", f"get_{word}"),
        "s",
        f"returns the {word} character of s",
        f"return s[{index}]",
        edges=[("a",), ("ab",), ("Zebra-9!",), ("9 lives, 8 To Go?",), (" pad ",), ("abC",)],
        more=lambda: (d.word(),),
    )


@family("repeat", level=1)
def _repeat(d: Draw) -> Variant:
    return d.function(
        d.pick("repeat", "repeat_string"),
        "s, n",
        d.pick("returns s repeated n times", "repeats the string s n times"),
        "return s * n",
        edges=[
            ("a", 0),
            ("ab", 1),
            ("Ab 9-", 3),
            (" ", 4),
            ("word", 12),
            ("", 3),
            ("abcdefghijklmn", 2),
            ("a", 120),
        ],
        more=lambda: (d.word()[:3], d.int(2, 5)),
    )


@family("change_case", level=1)
def _change_case(d: Draw) -> Variant:
    name, word, call = d.pick(
        ("shout", "upper", "upper"), ("to_upper", "upper", "upper"), ("to_lower", "lower", "lower")
    )
    return d.function(
        name,
        "s",
        d.pick(f"returns s in {word} case", f"converts s to {word}case"),
        f"return s.{call}()",
        edges=[("",), ("aB",), ("Hi 5",), (" mixed  Case, 9-\u00e9 ",)],
        more=lambda: (d.pick(str.upper, str.lower, str.title)(d.words(least=1, most=2)),),
    )


@family("word_count", level=2)
def _word_count(d: Draw) -> Variant:
    return d.function(
        d.pick("count_words", "word_count", "num_words"),
        "s",
        d.pick("returns the number of words in s", "counts the words in s") + ", using split",
        "return len(s.split())",
        edges=[
            ("",),
            ("one",),
            ("one two",),
            ("a  b ",),
            ("one, two-three  four\nfive",),
            ("a",),
            ("ab",),
        ],
        more=lambda: (d.words(least=2, most=5),),
    )


@family("reverse_words", level=2)
def _reverse_words(d: Draw) -> Variant:
    return d.function(
        d.pick("reverse_words", "flip_words"),
        "s",
        "returns s with its words in reverse order, using split and join",
        'return " ".join(s.split()[::-1])',
        edges=[("",), ("one",), ("a b",), ("One, two-2 three  4",), ("a",), ("ab",)],
        more=lambda: (d.words(),),
    )


@family("longest_word", level=3)
def _longest_word(d: Draw) -> Variant:
    word, call = d.pick(("longest", "max"), ("shortest", "min"))
    return d.function(
        f"{word}_word",
        "s",
        f"returns the {word} word in s, using {call} with key=len",
        f"return {call}(s.split(), key=len)",
        edges=[("one",), ("a bbb cc",), ("a bb cc",), ("Aa, BbbBb-9 cC",), ("a",), ("ab",)],
        more=lambda: (" ".join(d.shuffled(["a", "tree", "cherry", "sun", "mountain"])[:3]),),
    )


@family("title_words", level=2)
def _title_words(d: Draw) -> Variant:
    return d.function(
        d.pick("capitalize_words", "title_case"),
        "s",
        "returns s with the first letter of each word in upper case, using title",
        "return s.title()",
        edges=[("",), ("a",), ("one two",), (" two  words here, now ",), ("ab",)],
        more=lambda: (d.words(),),
    )


@family("remove_letters", level=2)
def _remove_letters(d: Draw) -> Variant:
    name, task, test = d.pick(
        ("remove_vowels", "returns s without its vowels", 'c not in "aeiou"'),
        ("keep_vowels", "returns only the vowels of s", 'c in "aeiou"'),
    )
    return d.function(
        name,
        "s",
        task,
        f'return "".join(c for c in s if {test})',
        edges=[
            ("",),
            ("aeiou",),
            ("xyz",),
            ("Queue, ice-9 try again",),
            ("a",),
            ("b",),
            ("ib",),
            (" b  cd ",),
        ],
        more=lambda: (d.word(),),
    )


@family("starts_with", level=2)
def _starts_with(d: Draw) -> Variant:
    word, call = d.pick(("starts", "startswith"), ("ends", "endswith"))
    letter = d.pick("a", "e", "s")
    return d.function(
        f"{word}_with_{letter}",
        "s",
        d.pick(
            f'returns True if s {word} with "{letter}"', f'checks whether s {word} with "{letter}"'
        ),
        f'return s.{call}("{letter}")',
        edges=[
            ("",),
            (letter,),
            ("x" + letter,),
            (letter + "x",),
            (letter + "b",),
            ("b" + letter,),
            (letter.upper() + "b" + letter.upper(),),
            (f"{letter} long string, 9x",),
            (f"x long string, 9{letter}",),
            (f" {letter}b",),
            (f"b{letter} ",),
        ],
        more=lambda: (d.word(),),
    )


@family("greet", level=1)
def _greet(d: Draw) -> Variant:
    word = d.pick("Hello", "Hi", "Welcome", "Goodbye")
    return d.function(
        d.pick("greet", "greeting", "say"),
        "name",
        d.pick(f'returns "{word}, " followed by name and "!"', f'returns the text "{word}, name!"'),
        f'return "{word}, " + name + "!"',
        edges=[("",), ("Al",), ("al jr",), ("Ann-Marie  O'Neil 3rd",), (" Al ",), ("x",)],
        more=lambda: (d.word().title(),),
    )


@family("remove_character", level=1)
def _remove_character(d: Draw) -> Variant:
    name, shown, char = d.pick(
        ("remove_spaces", "all spaces", " "),
        ("remove_commas", "all commas", ","),
        ("remove_dashes", "all dashes", "-"),
    )
    return d.function(
        name,
        "s",
        d.pick(f"removes {shown} from s", f"returns s with {shown} removed") + ", using replace",
        f'return s.replace("{char}", "")',
        edges=[("",), (char,), (f"a{char}b",), (f" A{char}b,{char} c-{char}9 ",), ("a",), ("ab",)],
        more=lambda: (d.words().replace(" ", char),),
    )


@family("count_case", level=2)
def _count_case(d: Draw) -> Variant:
    word = d.pick("upper", "lower")
    return d.function(
        f"count_{word}",
        "s",
        f"returns the number of {word}case letters in s",
        f"return sum(c.is{word}() for c in s)",
        edges=[("",), ("aB",), ("ABC d",), ("Ab, C-9 dEfgh IJk lm",), ("a",), ("B",)],
        more=lambda: ("".join(d.pick(c, c.upper()) for c in d.words(least=1, most=2)),),
    )


@family("join_words", level=1)
def _join_words(d: Draw) -> Variant:
    name, shown, char = d.pick(
        ("join_dash", "a dash", "-"), ("join_comma", "a comma", ","), ("join_space", "a space", " ")
    )
    return d.function(
        name,
        "words",
        f"joins the list words into one string with {shown} between, using join",
        f'return "{char}".join(words)',
        edges=[
            ([],),
            (["a"],),
            (["a", "b"],),
            (["One,", "", "b 2", "c", "d", "e", "F"],),
            (["b", "b", ""],),
        ],
        more=lambda: (d.words().split(),),
    )


@family("replace_letter", level=1)
def _replace_letter(d: Draw) -> Variant:
    old, new = d.pick(("a", "o"), ("e", "3"), ("o", "0"), (" ", "_"))
    return d.function(
        d.pick("replace", "convert", "encode"),
        "s",
        d.pick(
            f'replaces every "{old}" in s with "{new}", using s.replace',
            f'returns s with "{new}" for every "{old}"',
        ),
        f'return s.replace("{old}", "{new}")',
        edges=[
            ("",),
            (old,),
            (old + "x" + old,),
            (f" A{old}b, {old}-9 C{old.upper()}d ",),
            ("ab",),
            (old + "b",),
        ],
        more=lambda: (d.words(least=2, most=3),),
    )


@family("anagram", level=3)
def _anagram(d: Draw) -> Variant:
    def more() -> tuple[str, str]:
        word = d.word()[:4]
        return (word, d.pick("".join(d.shuffled(word)), word[::-1], d.word()[:4]))

    return d.function(
        d.pick("is_anagram", "same_letters"),
        "a, b",
        "returns True if a and b have the same letters in any order, using sorted",
        "return sorted(a) == sorted(b)",
        edges=[
            ("ab", "ba"),
            ("ab", "abb"),
            ("", ""),
            ("aab", "abb"),
            ("ab", "cd"),
            ("abc", "cab"),
            ("abcdefghijkl", "lkjihgfedcba"),
            ("abcdefghijkl", "abcdefghijkk"),
            ("a", "b"),
            ("a", "a"),
            ("", "a"),
        ],
        more=more,
    )


@family("string_length", level=1)
def _string_length(d: Draw) -> Variant:
    k = d.pick(3, 4, 5)
    word, sign = d.pick(("longer", ">"), ("shorter", "<"))
    return d.function(
        f"is_{word.replace('er', '')}" if word == "longer" else "is_short",
        "s",
        f"returns True if s is {word} than {k} characters",
        f"return len(s) {sign} {k}",
        edges=[
            ("",),
            ("abcdefgh"[:k],),
            ("abcdefgh"[: k + 1],),
            ("abcdefgh"[: k - 1],),
            ("a" + " " * k,),
            ("-" * (k + 1),),
            ("x",),
            ("xy",),
        ],
        more=lambda: (d.word(),),
    )


@family("add_affix", level=1)
def _add_affix(d: Draw) -> Variant:
    affix = d.pick("ing", "ed", "ly", ".txt", "?")
    return d.function(
        d.pick("add_ending", "add_suffix", "extend"),
        "s",
        d.pick(f'returns s with "{affix}" added at the end', f'adds "{affix}" to the end of s'),
        f'return s + "{affix}"',
        edges=[("",), ("a",), ("walk" + affix,), (" a ",), ("ab",), ("Ab-9, xyz tuv wxy",)],
        more=lambda: (d.word(),),
    )


@family("every_second_letter", level=2)
def _every_second_letter(d: Draw) -> Variant:
    return d.function(
        d.pick("skip_letters", "every_second"),
        "s",
        "returns every second character of s from the first on, using a slice",
        "return s[::2]",
        edges=[("",), ("a",), ("ab",), (" Ab, c-9 defgh IJ",)],
        more=lambda: (d.word(),),
    )
