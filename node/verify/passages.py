"""Text that verification runs through a model: prose and code of several kinds, for varied routing."""
# ruff: noqa: E501

PASSAGES = (
    '''class Account:
    """A named balance in whole cents."""

    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        return self.balance
''',
    """And the keeper of the well said to the people, Draw in the morning while it is cool, and let the old
draw first. So they came at the hour before the sun, each with a vessel, and there was no quarrel among them.
But in the seventh year the water fell, and they that came late found only stones, and they went to the keeper
and said, What shall we do? And he answered them, Dig together, for one man cannot dig so deep.
""",
    '''import os
import sys


def walk(top, followlinks=False):
    """Yield the path of every file below a directory."""
    for name in sorted(os.listdir(top)):
        path = os.path.join(top, name)
        if os.path.isdir(path) and (followlinks or not os.path.islink(path)):
            yield from walk(path, followlinks)
        else:
            yield path


if __name__ == "__main__":
    for argument in sys.argv[1:] or ["."]:
        for path in walk(argument):
            print(path)
''',
    """The function returns a list of the words in the string, using the given separator as the delimiter. If the
separator is not given or is None, runs of whitespace are regarded as a single separator, and the result will
contain no empty strings at the start or end. Changed in version 3.3: the method also accepts keyword arguments.
See also the description of the inverse operation, and the examples at the end of this section.
""",
    """def test_sorted_by_length(self):
        words = ["pear", "fig", "banana", "kiwi"]
        self.assertEqual(sorted(words, key=len), ["fig", "pear", "kiwi", "banana"])
        with self.assertRaises(TypeError):
            sorted([1, "one"])
        for size in range(10):
            with self.subTest(size=size):
                data = list(range(size))
                self.assertEqual(sorted(reversed(data)), data)
                self.assertIsNot(sorted(data), data)
""",
    """Bees build their combs of six-sided cells. No cell is made by one bee alone: many work at the same wall from
both sides, each adding a little wax, and what comes out is even because each of them follows the same few rules.
Nobody draws a plan. When a part breaks, those who are nearest mend it. When room is short, the comb grows at the
edge where honey is stored fastest. A hive that loses a third of its workers slows down, but it does not stop.
""",
    """{"name": "example", "version": 3, "enabled": true, "items": [{"id": 1, "label": "first"}, {"id": 2, "label": "second"}],
 "limits": {"size": 4096, "depth": 12, "timeout": 2.5}, "comment": null}

static int
list_append(struct list *self, void *item)
{
    if (self->used == self->allocated) {
        size_t wanted = self->allocated ? 2 * self->allocated : 8;
        void **items = realloc(self->items, wanted * sizeof(void *));
        if (items == NULL) {
            return -1;
        }
        self->items = items;
        self->allocated = wanted;
    }
    self->items[self->used++] = item;
    return 0;
}
""",
)
