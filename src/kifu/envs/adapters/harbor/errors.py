"""What a failed trial of Harbor means, by the name of its exception: try again, grade, and is its reward one?

The names and their three answers are those of harbor 0.26. A name it does not know is tried again and graded there;
here the reward of such a trial is no reward: what is not understood must not be trained on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kifu.records import StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRule:
    """How one kind of failure is treated."""

    retry: bool
    """Whether another attempt may go better."""
    grade: bool
    """Whether the verifier runs all the same."""
    has_reward: bool
    """Whether what the verifier says is the policy's reward."""
    stop: StopReason
    """How the episode ended, in the words of a record."""


def _rules(stop: StopReason, *, retry: bool, grade: bool, has_reward: bool, names: str) -> dict[str, ErrorRule]:
    rule = ErrorRule(retry=retry, grade=grade, has_reward=has_reward, stop=stop)
    return dict.fromkeys(names.split(), rule)


ERROR_RULES: Mapping[str, ErrorRule] = MappingProxyType(
    {
        **_rules(
            StopReason.SANDBOX_ERROR,
            retry=True,
            grade=False,
            has_reward=False,
            names="EnvironmentStartTimeoutError SandboxBuildFailedError HealthcheckError SandboxLikelyOutOfMemoryError "
            "MemoryLimitExceededError SSHAccessError GKEExecStreamClosedError GKEPodNotFoundError RuntimeRequestError",
        ),
        **_rules(
            StopReason.VERIFIER_ERROR,
            retry=True,
            grade=False,
            has_reward=False,
            names="AddTestsDirError DownloadVerifierDirError",
        ),
        **_rules(StopReason.AGENT_ERROR, retry=True, grade=False, has_reward=False, names="AgentSetupTimeoutError"),
        **_rules(
            StopReason.ENGINE_ERROR,
            retry=True,
            grade=True,
            has_reward=False,
            names="ApiError ApiRateLimitError ApiInternalServerError ApiOverloadedError ApiConnectionClosedError "
            "ApiResponseStalledError UnknownApiError NetworkConnectionError ApiConnectionError ApiUsageLimitError "
            "RateLimitError InternalServerError ServiceUnavailableError APIConnectionError APIError Timeout",
        ),
        **_rules(
            StopReason.ENGINE_ERROR,
            retry=False,
            grade=True,
            has_reward=False,
            names="UnsupportedModelParametersError BadRequestError UnprocessableEntityError UnsupportedParamsError "
            "APIResponseValidationError BudgetExceededError",
        ),
        **_rules(
            StopReason.VERIFIER_ERROR,
            retry=False,
            grade=True,
            has_reward=False,
            names="VerifierTimeoutError RewardFileNotFoundError RewardFileEmptyError VerifierOutputParseError",
        ),
        **_rules(
            StopReason.ENGINE_ERROR,
            retry=False,
            grade=False,
            has_reward=False,
            names="AgentAuthenticationError ModelNotFoundError ApiProviderResourceNotFoundError AuthenticationError "
            "PermissionDeniedError NotFoundError",
        ),
        **_rules(
            StopReason.ENV_ERROR,
            retry=False,
            grade=False,
            has_reward=False,
            names="ServiceOperationsUnsupportedError VercelScopeError DspyImportError MissingExtraError RegradeError",
        ),
        **_rules(StopReason.CANCELLED, retry=False, grade=False, has_reward=False, names="CancelledError"),
        **_rules(
            StopReason.NATURAL_END,
            retry=False,
            grade=True,
            has_reward=True,
            names="NonZeroAgentExitCodeError AgentSafetyRefusalError ContentPolicyViolationError",
        ),
        **_rules(StopReason.TIME_LIMIT, retry=False, grade=True, has_reward=True, names="AgentTimeoutError"),
        **_rules(
            StopReason.CONTEXT_LIMIT,
            retry=False,
            grade=True,
            has_reward=True,
            names="ContextWindowExceededError ContextLengthExceededError",
        ),
        **_rules(
            StopReason.TOKEN_LIMIT,
            retry=False,
            grade=True,
            has_reward=True,
            names="OutputTokenExceededError OutputLengthExceededError",
        ),
    }
)
"""By the name of the exception."""

UNKNOWN = ErrorRule(retry=True, grade=True, has_reward=False, stop=StopReason.ENV_ERROR)


def error_rule(name: str) -> ErrorRule:
    """The rule for an exception of that name."""
    return ERROR_RULES.get(name, UNKNOWN)
