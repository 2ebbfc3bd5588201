! A uniform Cartesian grid of cell averages on [0, length_x] x [0, length_y].
module grid
  use kinds, only: dp
  use deck, only: deck_t
  implicit none

  type :: grid_t
    integer :: nx, ny
    real(dp) :: dx, dy, length_x, length_y
  contains
    procedure :: x_centre, y_centre, x_edge, y_edge
  end type grid_t

contains

  pure function make_grid(d) result(g)
    type(deck_t), intent(in) :: d
    type(grid_t) :: g
    g = grid_t(d%nx, d%ny, d%length_x / d%nx, d%length_y / d%ny, d%length_x, d%length_y)
  end function make_grid

  elemental real(dp) function x_centre(g, i)
    class(grid_t), intent(in) :: g
    integer, intent(in) :: i
    x_centre = (i - 0.5_dp) * g%dx
  end function x_centre

  elemental real(dp) function y_centre(g, j)
    class(grid_t), intent(in) :: g
    integer, intent(in) :: j
    y_centre = (j - 0.5_dp) * g%dy
  end function y_centre

  ! Edge i lies between cells i and i+1, so edge 0 is the western boundary.
  elemental real(dp) function x_edge(g, i)
    class(grid_t), intent(in) :: g
    integer, intent(in) :: i
    x_edge = i * g%dx
  end function x_edge

  elemental real(dp) function y_edge(g, j)
    class(grid_t), intent(in) :: g
    integer, intent(in) :: j
    y_edge = j * g%dy
  end function y_edge

end module grid
