# Claim the next free one of many codes, each once.
item_claims()
{
	local round mode kind

	echo "(claims) 16 sessions claim $codes codes" >&2
	for mode in durable fast; do
		for ((round = 0; round < rounds; round++)); do
			for kind in lease skip_locked; do
				sql lease_bench -v codes="$codes" -f "$here/setup/codes.sql"
				measure "claims $kind $mode" lease_bench "claim_$kind" 16 "${!mode}" -t $((codes / 16))
				expect 'each code was claimed once' lease_bench "SELECT
					(SELECT count(*) = count(DISTINCT id) FROM claim) AND
					NOT EXISTS (SELECT FROM claim FULL JOIN code USING (id, claimed_by)
						WHERE claimed_by IS NOT NULL AND (claim IS NULL OR code IS NULL))"
				unclaimed=$(sql lease_bench -c 'SELECT count(*) FROM code WHERE claimed_by IS NULL')
				samples["claims $kind $mode left"]+="$unclaimed "
			done
		done
	done
}

report_claims()
{
	local mode

	printf '\n### (claims) 16 sessions claim %s codes, claims per second\n' "$codes"
	header mode lease_acquire_any 'FOR UPDATE SKIP LOCKED' 'lease / SKIP LOCKED' 'tries in vain, lease'
	for mode in durable fast; do
		row "${mode/fast/not durable}" "$(cell "claims lease $mode")" "$(cell "claims skip_locked $mode")" \
			"$(ratio "claims lease $mode" "claims skip_locked $mode")" "$(cell "claims lease $mode left")"
	done
}
