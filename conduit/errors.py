"""How a call of Conduit can go wrong, named for what the caller may conclude about the work behind it."""

HIDDEN = "****"
"""What stands where a secret was."""


class ConduitError(Exception):
    """The root. Its text is fit for a log and for the error history of a task: no secret, bounded."""

    def hide(self, secret: str) -> None:
        """Take a secret out of the text."""
        self.args = tuple(str(one).replace(secret, HIDDEN) for one in self.args)


class NotReached(ConduitError):
    """Nobody took the call, or it was turned away unread: nothing ran. It may work later by itself."""


class Misconfigured(ConduitError):
    """The call was refused for a reason that only an administrator can remove: nothing ran.

    `fix` says what to do about it.
    """

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason}: {fix}")
        self.reason = reason
        self.fix = fix

    def hide(self, secret: str) -> None:
        super().hide(secret)
        self.reason = self.reason.replace(secret, HIDDEN)


class TokenRefused(Misconfigured):
    """The one reason of these that a call without a token, or with a wrong one, must meet."""


class RequestTooLarge(Misconfigured):
    """This one call has more bytes than somebody on the way takes, while others pass."""


class OutcomeUnknown(ConduitError):
    """The answer was lost: the method may have run, may not have, or may be running now."""


class TimedOut(OutcomeUnknown):
    """It was not waited for any longer."""


class CallFailed(ConduitError):
    """The call was answered, and not with a result. `code` is Conduit's own, where it gave one."""

    def __init__(self, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.code = code


class ReplyTooLarge(CallFailed):
    """There is a good reply, of more bytes than anybody reads: whatever was asked for has been done."""


class UnknownParameters(CallFailed):
    """The method is there and knows other parameters, so it is of another version: nothing ran."""
