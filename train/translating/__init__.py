"""From a run folder and text to translations.

translation, translator, search     what a translation is; text to ids and back; the compiled searches
alignments, scoring, metrics        what attention found; scores
heads, maps                         what every layer and head looks at, and its picture
check_search                        whether a search can be done with a model
lines, output_file                  long texts
page                                the interactive page
"""
