{% macro _verified_tables(comparisons, syncs, seconds=none) -%}
    {#- Returns a SELECT with a row for each source's table that was ever compared.
        `buckets_verified` is how many of its `buckets` are verified, within the last `seconds` if
        given. All keys have been verified since `verified_until`, except for their columns in
        `columns_left_out`; it is null if some keys are not verified.
        A bucket is verified by a comparison that found no differences, or whose differences were
        all repaired. All buckets must be verified with the same number of buckets and the same
        columns left out. A comparison with a different key than the latest one does not count,
        because its buckets contain different rows. Nor does one before the newest full refresh or
        adoption: the raw table may have been dropped since then, or the spec may have selected
        other rows. -#}
    select *
    from (
        select
            *,
            row_number() over (
                partition by source_name, table_name
                order by 1.0 * buckets_verified / buckets desc, verified_until desc nulls last,
                    newest_at desc
            ) as place
        from (
            select
                source_name,
                table_name,
                buckets,
                columns_left_out,
                count({% if seconds is not none %}case when verified_at >= {{
                    strandline._seconds_ago(seconds) }} then 1 end
                    {%- else %}verified_at{% endif %}) as buckets_verified,
                case when count(verified_at) = buckets then min(verified_at) end as verified_until,
                max(newest_at) as newest_at
            from (
                select
                    source_name,
                    table_name,
                    buckets,
                    columns_left_out,
                    bucket,
                    max(case when is_equal and is_of_key and is_of_generation then verified_at end)
                        as verified_at,
                    max(verified_at) as newest_at
                from (
                    select
                        compared.*,
                        compared.repaired or compared.missed_updates + compared.missed_rows
                            + compared.missed_deletes = 0 as is_equal,
                        coalesce(compared.key_columns, '') = coalesce(
                            first_value(compared.key_columns) over (
                                partition by compared.source_name, compared.table_name
                                order by compared.verified_at desc
                            ), '') as is_of_key,
                        reloads.began_at is null
                            or compared.verified_at >= reloads.began_at
                            or compared.run_id = reloads.run_id as is_of_generation
                    from {{ strandline._comparisons(comparisons) }} as compared
                    left join (
                        select
                            source_name,
                            table_name,
                            max(started_at) as began_at,
                            max_by(run_id, started_at) as run_id
                        from {{ strandline._syncs(syncs) }} as syncs
                        where mode in ('full_refresh', 'adoption')
                            and batch is not null
                        group by source_name, table_name
                    ) as reloads
                        on compared.source_name = reloads.source_name
                        and compared.table_name = reloads.table_name
                ) as judged
                group by source_name, table_name, buckets, columns_left_out, bucket
            ) as of_buckets
            group by source_name, table_name, buckets, columns_left_out
        ) as rotations
    ) as ranked
    where place = 1
{%- endmacro %}
