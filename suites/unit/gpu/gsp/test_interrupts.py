"""The interrupt tree of a GPU."""

from __future__ import annotations

from harness.gpu.gsp.interrupts import InterruptTree

VECTOR = 153
LEAF, BIT = VECTOR // 32, 1 << VECTOR % 32


def an_enabled_tree() -> InterruptTree:
    tree = InterruptTree()
    tree.write(0x1200 + 4 * LEAF, BIT)
    tree.write(0x1608, 1 << LEAF // 2)
    return tree


def test_vector_raises_the_interrupt_only_if_the_vector_is_pending_and_enabled() -> None:
    tree = an_enabled_tree()
    tree.trigger(VECTOR)
    seen = [(tree.is_raised, tree.read(0x1000 + 4 * LEAF), tree.read(0x1600))]

    tree.write(0x1000 + 4 * LEAF, BIT)
    seen += [(tree.is_raised, tree.read(0x1000 + 4 * LEAF), tree.read(0x1600))]
    # The driver triggers the vector through a register.
    assert tree.write(0x1640, VECTOR)
    seen += [(tree.is_raised, tree.read(0x1000 + 4 * LEAF), tree.read(0x1600))]
    tree.write(0x1610, 0xFFFFFFFF ^ 1 << LEAF // 2)
    raised = [tree.is_raised]
    tree.clear()
    raised.append(tree.is_raised)
    tree.trigger(VECTOR)
    raised.append(tree.is_raised)
    tree.write(0x1610, 1 << LEAF // 2)
    assert raised == [True, False, True]

    top = 1 << LEAF // 2
    assert seen == [(True, BIT, top), (False, 0, 0), (True, BIT, top)]
    assert (tree.is_raised, tree.read(0x1608)) == (False, 0)


def test_vector_that_is_not_enabled_stays_pending() -> None:
    """The interrupt is raised only if both the vector and its subtree are enabled."""
    tree = InterruptTree()

    tree.trigger(VECTOR)

    assert not tree.is_raised
    assert tree.write(0x1200 + 4 * LEAF, BIT)
    assert tree.read(0x1600) == 1 << LEAF // 2
    assert not tree.is_raised
    assert tree.write(0x1608, 1 << LEAF // 2)
    assert tree.is_raised


def test_vectors_of_a_leaf_are_enabled_and_disabled_separately() -> None:
    """Writing 0 to a bit changes nothing."""
    tree = InterruptTree()
    tree.write(0x1608, 1)
    tree.write(0x1200, 0x28)
    tree.write(0x1200, 0x100)
    tree.write(0x1400, 0x8)

    raised = []
    for vector in (3, 5, 8):
        tree.trigger(vector)
        raised.append(tree.is_raised)
        tree.write(0x1000, 1 << vector)

    assert raised == [False, True, True]
    assert not tree.is_raised


def test_both_leaves_of_a_subtree_share_one_bit_of_the_top_register() -> None:
    tree = InterruptTree()
    tree.write(0x1200, 1)
    tree.write(0x1204, 1)

    for vector in (32, 0):
        tree.trigger(vector)
        assert tree.read(0x1600) == 1


def test_vectors_that_do_not_exist_are_ignored() -> None:
    tree = InterruptTree()

    tree.trigger(256)
    tree.trigger(-1)

    assert [tree.read(0x1000 + 4 * leaf) for leaf in range(8)] == [0] * 8
