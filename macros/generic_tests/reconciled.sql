{% test reconciled(model, within=24, min_share=1.0) %}
    {{ config(severity="warn") }}
    {{ adapter.dispatch("test_reconciled", "strandline")(model, within, min_share) }}
{% endtest %}


{% macro spark__test_reconciled(model, within, min_share) -%}
    {%- if not strandline.testing() %}
        select cast(null as string) as table_name where false
    {%- else %}
    {%- set raw = strandline.tested_table(model, "reconciled") %}
    {%- if not modules.re.match("^[0-9]+([.][0-9]+)?$", within | string) -%}
        {{ exceptions.raise_compiler_error(
            strandline.test_on(raw) ~ ": within is '" ~ within ~ "'. Give a number of hours."
        ) }}
    {%- endif -%}
    {#- It may come as a text, from a variable. #}
    {%- set within = within | float if "." in within | string else within | int %}
    {%- set reconciled = strandline.reconciled_relation(raw.schema) %}
    {%- set known = strandline.exists(reconciled) %}
    {%- set sharers = strandline.sharers(raw) %}
    {%- set span = "day" if within == 24 else within ~ " hours" %}
    with verified as (
        {%- if known %}
        select *
        from {{ reconciled }} as reconciled
        where table_name = {{ strandline.text_literal(raw.identifier) }}
        {%- else %}
        select
            cast(null as string) as source_name,
            cast(null as bigint) as bucket,
            cast(null as bigint) as buckets,
            cast(null as timestamp) as verified_at,
            cast(null as bigint) as missed_updates,
            cast(null as bigint) as missed_rows,
            cast(null as bigint) as missed_deletes,
            cast(null as boolean) as repaired
        where false
        {%- endif %}
    ),

    -- a bucket of 64 holds other keys than a bucket of 16: the newest division counts
    division as (
        {%- if sharers %}
        select
            sources.source_name,
            max_by(buckets, verified_at) as buckets
        from (select explode(array(
            {%- for source in sharers %}{{ strandline.text_literal(source) }}{{ ", " if not loop.last }}{% endfor -%}
        )) as source_name) as sources
        left join verified on sources.source_name = verified.source_name
        group by sources.source_name
        {%- else %}
        select
            max_by(source_name, verified_at) as source_name,
            max_by(buckets, verified_at) as buckets
        from verified
        {%- endif %}
    ),

    newest as (
        select
            verified.source_name,
            verified.bucket,
            max(verified.verified_at) as verified_at,
            max_by(
                struct(missed_updates, missed_rows, missed_deletes, repaired), verified.verified_at
            ) as found
        from verified
        inner join division
            on verified.source_name = division.source_name
            and verified.buckets = division.buckets
        group by verified.source_name, verified.bucket
    ),

    coverage as (
        select
            division.source_name,
            count_if(
                verified_at >= current_timestamp() - make_dt_interval(0, 0, 0, {{ within * 3600 }})
            ) as buckets_verified,
            min(verified_at) as verified_at
        from division
        left join newest on division.source_name = newest.source_name
        group by division.source_name
    )

    select
        {{ strandline.text_literal(raw.identifier) }} as table_name,
        division.source_name,
        cast(null as bigint) as bucket,
        coverage.buckets_verified,
        division.buckets,
        coverage.verified_at,
        cast(null as bigint) as missed_updates,
        cast(null as bigint) as missed_rows,
        cast(null as bigint) as missed_deletes,
        if(
            division.buckets is null,
            'never reconciled: `loader reconcile` does',
            concat(coverage.buckets_verified, ' of ', division.buckets, ' buckets verified in the last {{ span }}')
        ) as problem
    from coverage
    inner join division on coverage.source_name <=> division.source_name
    where division.buckets is null
        or coverage.buckets_verified < {{ min_share }} * division.buckets

    union all

    select
        {{ strandline.text_literal(raw.identifier) }},
        division.source_name,
        newest.bucket,
        coverage.buckets_verified,
        division.buckets,
        newest.verified_at,
        newest.found.missed_updates,
        newest.found.missed_rows,
        newest.found.missed_deletes,
        'differences, not repaired: `loader reconcile --repair` does'
    from newest
    inner join division on newest.source_name = division.source_name
    inner join coverage on newest.source_name = coverage.source_name
    where not newest.found.repaired
        and newest.found.missed_updates + newest.found.missed_rows + newest.found.missed_deletes > 0
    {%- endif %}
{%- endmacro %}
