# @CANARY@
# Equal in all tasks of a source tree, so the build cache makes the reference once.
FROM @BASE_IMAGE@ AS reference
COPY source/ /tests/source/
COPY cases/ /tests/cases/
COPY rows.py reference.py /tests/
RUN python3 /tests/reference.py

FROM reference AS straw
COPY . /tests/
RUN python3 /tests/grade_floor.py && rm -rf /tests/source /tests/defect

# The pinned source and the fix are in no layer that a delivered program could read.
FROM @BASE_IMAGE@
COPY --from=straw /tests /tests
WORKDIR /tests
CMD ["sh", "/tests/test.sh"]
