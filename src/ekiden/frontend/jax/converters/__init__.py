"""Operations of StableHLO and CHLO by family."""
