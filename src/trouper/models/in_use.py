"""The models that a runtime has asked: their keys are kept out of what is written, and their connections end with it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from contextlib import suppress

import trio

from trouper.foreign import chain_of, from_outside
from trouper.models.protocol import Confidant, Model, close_model, confide_in, forget_session

logger = logging.getLogger("trouper.models")
#: Seconds that a client may take to say good-bye.
_CLOSE_S = 1.0


class ModelsInUse:
    def __init__(self, confidant: Confidant) -> None:
        self._confidant = confidant
        #: All that were ever asked here and are still there, by identity. Weakly: a host may make one for every turn.
        self._met: weakref.WeakValueDictionary[int, Model] = weakref.WeakValueDictionary()
        #: Those of sessions that are no longer here, where they cannot be referred to weakly.
        self._left: dict[int, Model] = {}

    def meet(self, model: Model) -> None:
        """A model that is about to be used."""
        with suppress(TypeError):  # A class with slots of its own may have no room for it; see `close`.
            self._met[id(model)] = model
        confide_in(model, self._confidant)

    def leave(self, model: Model, session: str) -> None:
        """The session that had it has ended, or was put to rest."""
        if id(model) not in self._met:
            self._left[id(model)] = model
        try:
            forget_session(model, session)
        except Exception as raised:  # Foreign code: it has no say in how a session ends.
            told = chain_of(raised, self._confidant.text)
            logger.warning("a client of %s failed as a session ended: %s", type(model).__name__, told)

    async def close(self, in_use: Iterable[Model]) -> None:
        """Clients keep connections open for the next request; there is none any more. `in_use`: those that sessions hold, also where they cannot be referred to weakly."""
        for model in {**self._met, **self._left, **{id(model): model for model in in_use}}.values():
            with trio.move_on_after(_CLOSE_S):
                try:
                    await close_model(model)
                except BaseException as raised:  # Foreign code: it has no say in how the runtime ends, nor in whether the others are closed.
                    if (outside := from_outside(raised)) is not None:
                        raise outside from None
                    told = chain_of(raised, self._confidant.text)
                    logger.warning("a client of %s failed while it was closed: %s", type(model).__name__, told)
