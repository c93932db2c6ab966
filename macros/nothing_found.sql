{% macro nothing_found(columns) -%}
    {#- The SQL of a test that knows already that it has nothing to report. -#}
    {{ strandline.found_nothing() }}
    select {{ columns }} where false
{%- endmacro %}


{% macro found_nothing() -%}
    {{ return("/* strandline: nothing to report */") }}
{%- endmacro %}


{% macro spark__get_test_sql(main_sql, fail_calc, warn_if, error_if, limit) -%}
    {#-
        What dbt sends to count a test's rows. For a test that knows that there are none it sends the count: for that, Spark
        runs no job. In a project that installs this package, dbt finds this macro only through an entry under `dispatch`.
    -#}
    {%- if strandline.found_nothing() in main_sql -%}
    select * from values (0, false, false) as told (failures, should_warn, should_error)
    {%- else -%}
    {{ dbt.default__get_test_sql(main_sql, fail_calc, warn_if, error_if, limit) }}
    {%- endif -%}
{%- endmacro %}
